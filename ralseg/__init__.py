"""ralseg learns which small image regions to label next.

Importing this package is cheap on purpose: nothing here imports torch, so that ``ralseg --help``
answers at once. Import what you need from its modules.
"""

__version__ = "0.1.0"
