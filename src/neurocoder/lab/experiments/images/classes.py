"""Data sets and their classes in words; of CIFAR-100 the fine labels."""

from __future__ import annotations

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
HUNDRED = """
apple aquarium-fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn-mower leopard lion lizard lobster man maple-tree motorcycle
mountain mouse mushroom oak-tree orange orchid otter palm-tree pear pickup-truck pine-tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet-pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow-tree wolf woman worm
"""
CLASSES: dict[str, tuple[str, ...]] = {
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "cifar100": tuple(HUNDRED.split()),
}
"""By label."""
