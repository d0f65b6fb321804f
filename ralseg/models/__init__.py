"""Networks that segment: what ralseg may ask of one, and the networks that come with it.

Here live the base LightningModule ``Segmenter``, every architecture of segmentation-models-pytorch behind it, a
closed-form segmenter, encoder weights, the cache of a frozen encoder's features, and mean IoU. Nothing here knows
policies or the game.
"""

from ralseg.models.closed_form import ClosedFormSegmenter
from ralseg.models.segmenter import Segmenter
from ralseg.models.smp import FPNSegmenter, SmpSegmenter

__all__ = ["ClosedFormSegmenter", "FPNSegmenter", "Segmenter", "SmpSegmenter"]
