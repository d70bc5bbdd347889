"""Keys and values of a model's layers, of which the first are taken without a copy."""

from typing import Any, final

from ltrag_plugins.errors import missing_extra

try:
    from torch import Tensor
    from transformers.cache_utils import Cache, DynamicLayer
except ImportError as error:
    raise missing_extra("transformers", "local") from error


@final
class TakenLayer(DynamicLayer):
    """Grows by copies, as `DynamicLayer` does, but holds what it is given first as it is."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """See `DynamicLayer`."""
        if self.is_initialized:
            return super().update(key_states, value_states, *args, **kwargs)
        self.lazy_initialization(key_states, value_states)
        self.keys, self.values = key_states, value_states
        return key_states, value_states


def new_cache() -> Cache:
    """An empty cache of any number of layers."""
    return Cache(layer_class_to_replicate=TakenLayer)
