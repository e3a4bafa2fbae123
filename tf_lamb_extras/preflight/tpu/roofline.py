"""Computes the minimum time of a training step from the peak rates of a TPU (a roofline model).

    compute = operations / peak operations per second
    memory  = bytes moved / bandwidth of the memory (HBM)
    network = 2 (n - 1)/n x bytes to all-reduce / bandwidth of a chip's links,   for n chips

Each of the three is a lower bound on the time, and the minimum time is the largest of them. How
much longer a real step takes is not estimated. The bound of the network assumes that all links of a
chip send at their peak rate. It holds for any all-reduce in which the chips, and not the network,
compute the sums (Patarasuk and Yuan, 2009).
"""

import dataclasses
import math

GIB = 2.0**30  # the bytes of a GiB


def gib(size: float) -> str:
    """Returns a size in bytes as text, in GiB."""
    return f"{size / GIB:.2f} GiB"


@dataclasses.dataclass(frozen=True)
class Chip:
    """Holds the memory and the peak rates of a generation of TPU.

    The rates are those of a chip. The memory is that of a program.

    Attributes:
        name: The name of the generation, as it stands in the names of topologies.
        replicas: The number of programs that run on one chip at once. It is 1 for a v4 or v5p,
            although the chip has two cores.
        memory: The bytes of HBM that a program may use, as libtpu 0.0.42.1 reports them.
        flops: Operations per second in bfloat16; no other dtype of training is faster.
        bandwidth: Bytes per second between HBM and chip.
        links: Bytes per second that a chip sends to other chips, over all of its links.
        dimensions: The number of sizes in the name of a topology of this generation.
        source: Where these numbers are published.
    """

    name: str
    replicas: int
    memory: float
    flops: float
    bandwidth: float
    links: float
    dimensions: int
    source: str


_PAGES = "cloud.google.com/tpu/docs"
# A `Chip` for each generation of TPU, by its name.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v3", 2, 15.48 * GIB, 123e12, 900e9, 340e12 / 1024, 2,
             f"{_PAGES}/v3; links: 340 TB/s of all-reduce over 1,024 chips"),
        Chip("v4", 1, 30.75 * GIB, 275e12, 1.2e12, 300e9, 3,
             f"{_PAGES}/v4; links: six of 50 GB/s, arXiv:2304.01433"),
        Chip("v5e", 1, 15.75 * GIB, 197e12, 819e9, 200e9, 2,
             f"{_PAGES}/v5e; links: 1,600 Gbps"),
        Chip("v5p", 1, 95.74 * GIB, 459e12, 2.765e12, 600e9, 3,
             f"{_PAGES}/v5p; links: 4,800 Gbps"),
        Chip("v6e", 1, 31.25 * GIB, 918e12, 1.638e12, 400e9, 2,
             f"{_PAGES}/v6e; links: 800 GBps in both directions"),
    )
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Topology:
    """Describes a TPU slice: the generation of its chips, and their arrangement.

    Attributes:
        chip: The generation of TPU.
        shape: The number of chips along each axis.
    """

    chip: Chip
    shape: tuple[int, ...]

    def __str__(self):
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def chips(self) -> int:
        """The number of chips."""
        return math.prod(self.shape)

    @property
    def replicas(self) -> int:
        """The number of programs that run at once: one per chip, or one per core of a v3."""
        return self.chips * self.chip.replicas


def topology(name: str) -> Topology:
    """Returns the topology for a name such as v3:32x32 or v4:4x4x4.

    Raises:
        ValueError: If the name is not that of a topology. The message lists the generations.
    """
    hint = f"Known are {', '.join(_example(chip) for chip in CHIPS.values())}, and other sizes"
    generation, colon, sizes = str(name).partition(":")
    try:
        shape = tuple(int(part) for part in sizes.split("x"))
    except ValueError:
        shape = ()
    if not colon or not shape or min(shape) < 1:
        raise ValueError(f"{name!r} is no topology. Write GENERATION:SIZExSIZE. {hint}")
    chip = CHIPS.get(generation)
    if chip is None:
        raise ValueError(f"topology {name!r}: TPU {generation} is not known here. {hint}")
    if len(shape) != chip.dimensions:
        raise ValueError(
            f"topology {name!r}: a {generation} is a torus of {chip.dimensions} dimensions, such "
            f"as {_example(chip)}. {hint}"
        )
    return Topology(chip, shape)


def _example(chip: Chip) -> str:
    """Returns the name of an example topology of a generation, such as v4:4x4x4."""
    return f"{chip.name}:{'x'.join(['4'] * chip.dimensions)}"


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Holds the minimum seconds of a step for each of three resources.

    Attributes:
        compute: Seconds for the operations.
        memory: Seconds for the bytes moved.
        network: Seconds for the all-reduces.
    """

    compute: float
    memory: float
    network: float

    @property
    def step(self) -> float:
        """The minimum seconds of the step: the largest bound, because all three may overlap."""
        return max(self.compute, self.memory, self.network)

    @property
    def binding(self) -> str:
        """The resource with the largest bound: "compute", "memory" or "network"."""
        return max(("compute", "memory", "network"), key=lambda name: getattr(self, name))


def bounds(topology: Topology, flops: float, bytes_moved: float, reduced: float) -> Bounds:
    """Returns the minimum seconds of a step for each resource.

    Args:
        topology: The TPU slice.
        flops: The operations of one replica.
        bytes_moved: The bytes that one replica moves.
        reduced: The bytes to all-reduce over all chips.
    """
    chip, n = topology.chip, topology.chips
    return Bounds(
        compute=flops * chip.replicas / chip.flops,
        memory=bytes_moved * chip.replicas / chip.bandwidth,
        network=2 * (n - 1) / n * reduced / chip.links,
    )
