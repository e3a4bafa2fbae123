"""The peak rates of a TPU, and so the least time that a step can take on it.

    compute = operations / peak operations a second
    memory  = bytes moved / bandwidth of the memory (HBM)
    network = 2 (n - 1)/n x bytes to all-reduce / bandwidth of a chip's links, n chips

Each is a lower bound, and so is the largest of them; nothing here says how near a program comes.
The network's is that of any all-reduce without arithmetic in the network (Patarasuk and Yuan,
2009), with every link of a chip in use.
"""

import dataclasses
import math

GIB = 2.0**30


def gib(size: float) -> str:
    """Bytes as a person reads them."""
    return f"{size / GIB:.2f} GiB"


@dataclasses.dataclass(frozen=True)
class Chip:
    """A generation of TPU. All but the memory are a whole chip's, as published.

    Attributes:
        name: as topologies call it.
        replicas: programs that run on one chip, each with a part of it. A v4 or v5p runs one on
            both of its cores.
        memory: bytes of HBM that a program may have, as libtpu 0.0.42.1 says it.
        flops: operations a second, in bfloat16; no other dtype of training is faster.
        bandwidth: bytes a second between HBM and chip.
        links: bytes a second that a chip sends to others.
        dimensions: how many numbers a topology of this generation has.
        source: where the figures stand.
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
    """A slice of a pod: a generation, and how its chips stand."""

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
        """The number of programs that run at once; cores, on a v3."""
        return self.chips * self.chip.replicas


def topology(name: str) -> Topology:
    """The topology that a name such as v3:32x32 or v4:4x4x4 stands for, or an error that lists."""
    known = f"Known are {', '.join(_example(chip) for chip in CHIPS.values())}, and other sizes"
    generation, colon, rest = str(name).partition(":")
    try:
        shape = tuple(int(part) for part in rest.split("x"))
    except ValueError:
        shape = ()
    if not colon or not shape or min(shape) < 1:
        raise ValueError(f"{name!r} is no topology. Write GENERATION:SIZExSIZE. {known}")
    chip = CHIPS.get(generation)
    if chip is None:
        raise ValueError(f"topology {name!r}: TPU {generation} is not known here. {known}")
    if len(shape) != chip.dimensions:
        raise ValueError(
            f"topology {name!r}: a {generation} is a torus of {chip.dimensions} dimensions, such "
            f"as {_example(chip)}. {known}"
        )
    return Topology(chip, shape)


def _example(chip: Chip) -> str:
    return f"{chip.name}:{'x'.join(['4'] * chip.dimensions)}"


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The least seconds that a step can take, by what it waits for."""

    compute: float
    memory: float
    network: float

    @property
    def step(self) -> float:
        """The largest of them: all three may overlap."""
        return max(self.compute, self.memory, self.network)

    @property
    def binding(self) -> str:
        """The name of the largest of them."""
        return max(("compute", "memory", "network"), key=lambda name: getattr(self, name))


def bounds(topology: Topology, flops: float, bytes_moved: float, reduced: float) -> Bounds:
    """The bounds of a step: of one replica's operations and bytes, and the bytes to all-reduce."""
    chip, n = topology.chip, topology.chips
    return Bounds(
        compute=flops * chip.replicas / chip.flops,
        memory=bytes_moved * chip.replicas / chip.bandwidth,
        network=2 * (n - 1) / n * reduced / chip.links,
    )
