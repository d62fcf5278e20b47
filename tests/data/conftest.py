import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # spawned workers inherit it and import data_oracle by name
