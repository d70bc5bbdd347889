"""The systems the papers compare with, one file each, as flows."""

from ltrag_plugins.baselines.direct import direct
from ltrag_plugins.baselines.single import single_retrieval

__all__ = ["direct", "single_retrieval"]
