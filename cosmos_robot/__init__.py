"""Robot policies and world models on Cosmos 3 and Cosmos Policy.

Importing this package, its contract and its types needs neither torch nor a simulator.
"""

from cosmos_robot.contract import Contract, RobotSpec
from cosmos_robot.types import ActionChunk, Observation

__version__ = "0.1.0"

__all__ = ["ActionChunk", "Contract", "Observation", "RobotSpec", "__version__"]
