"""Ground truths: which cells are region of interest, drawn for E environments at once.

`Terrain.draw` is the only consumer of randomness; `Terrain.build` turns its draws into maps. The
rectangular kinds are unions of at most four rectangles, or the complement of one: sixteen edges
and a flag per environment, rasterised one axis at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.mission.seeding import check_split
from marl_framework.mission.terrains.own import OwnTerrain, load_own
from marl_framework.mission.terrains.raster import RasterTerrain

# Columns of `TerrainDraws.uniform`: which side, corner, axis or diagonal; complement or not;
# shares of the axes covered.
_PLACE, _COMPLEMENT, _SHARES = 0, 1, 2
_NUM_UNIFORM = 10

# Cells built at once: a random field or a raster window needs about 30 bytes of scratch memory a
# cell, a rectangular kind about 3.
_HEAVY_CELLS = 2**24
_LIGHT_CELLS = 2**28

Shape = tuple[int, int]
Rectangles = Callable[[Tensor, Shape], Tensor]


@dataclass
class TerrainDraws:
    """Random numbers behind E ground truths; None where no configured kind needs them."""

    kind: Tensor
    """[E] int64, index into `Terrain.kinds`."""
    uniform: Tensor | None
    """[E, 10] float64 in [0, 1), for the rectangular kinds."""
    noise: Tensor | None
    """[E, R, C] float16, standard normal, for `random_field`."""
    window: Tensor | None
    """[E] int64, which window of the split's part of the `raster`."""
    symmetry: Tensor | None
    """[E] int64, how that window is flipped and turned (see `cropping.orient`)."""
    own: tuple[Tensor, ...] = ()
    """[E, …] each, what the user's own terrains drew."""

    def __getitem__(self, environments: slice) -> TerrainDraws:
        """The draws of some of the environments."""
        uniform, noise, window, symmetry = (
            None if draw is None else draw[environments]
            for draw in (self.uniform, self.noise, self.window, self.symmetry)
        )
        own = tuple(draw[environments] for draw in self.own)
        return TerrainDraws(self.kind[environments], uniform, noise, window, symmetry, own)


class Terrain:
    """Draws and builds the ground truths of one split.

    Args:
        config: `sensor.simulation` names the kinds; one is drawn uniformly per environment.
        device: where draws and ground truths live.
        split: training, validation or test; decides which part of a raster is flown over;
            deployment: all of it. The synthetic kinds of different splits differ by the
            generator's seed alone.

    Raises:
        ConfigError: the raster cannot be read or is too small, or there is no such terrain.
    """

    def __init__(self, config: Config, device: torch.device | str, split: str) -> None:
        check_split(split)
        simulation = config.sensor.simulation
        self.kinds = simulation.drawn_kinds
        self.device = torch.device(device)
        self.shape = config.map_shape
        self._rectangular = tuple(kind for kind in self.kinds if kind in RECTANGULAR_KINDS)
        self._amplitude: Tensor | None = None
        self._raster: RasterTerrain | None = None
        if "random_field" in self.kinds:
            extent = (config.environment.x_dim, config.environment.y_dim)
            amplitude = field_amplitude(self.shape, extent, simulation.cluster_radius)
            self._amplitude = amplitude.to(self.device)
        if "raster" in self.kinds:
            self._raster = RasterTerrain(config, self.device, split)
        self._own: dict[str, OwnTerrain] = {
            kind: load_own(kind, config, self.device, split) for kind in self.kinds if "." in kind
        }
        cells = self.shape[0] * self.shape[1]
        if self._raster is not None:
            cells = max(cells, self._raster.num_pixels)
        heavy = bool(self._amplitude is not None or self._raster is not None or self._own)
        self._chunk = max(1, (_HEAVY_CELLS if heavy else _LIGHT_CELLS) // cells)

    def window_origins(self, draws: TerrainDraws) -> Tensor:
        """Where raster windows lie, from the lower left corner of the split's part [m]: [E, 2].

        Raises:
            ValueError: nothing is drawn from a raster.
        """
        if self._raster is None or draws.window is None:
            raise ValueError("only windows of a raster have an origin")
        return self._raster.origins(draws.window)

    def draw(self, num: int, generator: torch.Generator | None) -> TerrainDraws:
        """Random numbers for `num` ground truths, only those that the configured kinds need."""

        def integers(high: int) -> Tensor:
            return torch.randint(high, (num,), generator=generator, device=self.device)

        kind = integers(len(self.kinds))
        uniform = noise = window = symmetry = None
        if self._rectangular:
            # Double precision, so that a share's floor is the same on every device.
            uniform = torch.rand(
                num, _NUM_UNIFORM, generator=generator, device=self.device, dtype=torch.float64
            )
        if self._amplitude is not None:
            # The largest draw by far; 11 bits of a normal sample are plenty for a field.
            noise = torch.randn(
                num, *self.shape, generator=generator, device=self.device, dtype=torch.float16
            )
        if self._raster is not None:
            window = integers(self._raster.num_windows)
            symmetry = integers(self._raster.num_symmetries)
        own = tuple(terrain.draw(num, generator) for terrain in self._own.values())
        return TerrainDraws(kind, uniform, noise, window, symmetry, own)

    def build(self, draws: TerrainDraws) -> Tensor:
        """Ground truths [E, R, C] bool, True = region of interest. A pure function of `draws`."""
        num = draws.kind.shape[0]
        if num <= self._chunk:
            return self._build_chunk(draws)
        truth = torch.empty(num, *self.shape, dtype=torch.bool, device=draws.kind.device)
        for start in range(0, num, self._chunk):
            part = slice(start, start + self._chunk)
            truth[part] = self._build_chunk(draws[part])
        return truth

    def _build_chunk(self, draws: TerrainDraws) -> Tensor:
        """Every configured kind for every environment, then each environment's own."""
        truth: Tensor | None = None
        if draws.uniform is not None:
            edges, complement = self._edges(draws.kind, draws.uniform)
            truth = rasterise(edges, complement, self.shape)
        if draws.noise is not None and self._amplitude is not None:
            field = random_field(draws.noise, self._amplitude)
            truth = self._choose("random_field", draws.kind, above_half_range(field), truth)
        if draws.window is not None and draws.symmetry is not None and self._raster is not None:
            windows = self._raster.build(draws.window, draws.symmetry)
            truth = self._choose("raster", draws.kind, windows, truth)
        for (name, terrain), drawn in zip(self._own.items(), draws.own, strict=True):
            truth = self._choose(name, draws.kind, terrain.build(drawn), truth)
        if truth is None:
            raise ValueError("these draws hold nothing that the configured kinds can be built from")
        return truth

    def _choose(self, name: str, kind: Tensor, new: Tensor, truth: Tensor | None) -> Tensor:
        """`new` where the environment's kind is `name`, else `truth`."""
        if truth is None:
            return new
        return torch.where((kind == self.kinds.index(name))[:, None, None], new, truth)

    def _edges(self, kind: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Rectangles [E, 4, 4] int64 and complement [E] bool of each environment's kind."""
        edges = torch.zeros(kind.shape[0], 4, 4, dtype=torch.int64, device=kind.device)
        complement = torch.zeros_like(kind, dtype=torch.bool)
        for name in self._rectangular:
            chosen = kind == self.kinds.index(name)
            rectangles = RECTANGULAR_KINDS[name](uniform, self.shape)
            edges = torch.where(chosen[:, None, None], rectangles, edges)
            if name in COMPLEMENTED_KINDS:
                complement = complement | (chosen & (uniform[:, _COMPLEMENT] >= 0.5))
        return edges, complement


def rasterise(edges: Tensor, complement: Tensor, shape: Shape) -> Tensor:
    """Union of four rectangles per environment, or its complement.

    Args:
        edges: [E, 4, 4] int64; per rectangle first row, past-the-last row, first column,
            past-the-last column [cells]. A rectangle without extent is empty.
        complement: [E] bool.
        shape: (R, C).

    Returns:
        [E, R, C] bool.
    """
    rows = _membership(edges[..., :2], shape[0])
    cols = _membership(edges[..., 2:], shape[1])
    union = (rows[:, :, None] & cols[:, None, :]) != 0
    return union ^ complement[:, None, None]


def _membership(interval: Tensor, size: int) -> Tensor:
    """[E, 4, 2] half-open intervals to [E, size] uint8: bit k is set inside interval k."""
    cell = torch.arange(size, device=interval.device)
    inside = (cell >= interval[..., :1]) & (cell < interval[..., 1:])
    bit = torch.arange(4, device=interval.device, dtype=torch.uint8)[:, None]
    return (inside.to(torch.uint8) << bit).sum(1, dtype=torch.uint8)


def _split(uniform: Tensor, shape: Shape) -> Tensor:
    """One of four sides of the map, 30-60 % of it."""
    side = _pick(uniform[:, _PLACE], 4)
    share = _share(uniform, 0, 0.30, 0.60)
    along_x, far = side < 2, side % 2 == 1
    rows = torch.where(along_x[:, None], _anchored(share, far, shape[0]), _whole(side, shape[0]))
    cols = torch.where(along_x[:, None], _whole(side, shape[1]), _anchored(share, far, shape[1]))
    return _slots((rows, cols))


def _corner(uniform: Tensor, shape: Shape) -> Tensor:
    """One block in a corner, 55-74 % of each side."""
    corner = _pick(uniform[:, _PLACE], 4)
    share_x, share_y = _share(uniform, 0, 0.55, 0.74), _share(uniform, 1, 0.55, 0.74)
    return _slots(_block(share_x, share_y, corner >= 2, corner % 2 == 1, shape))


def _band(uniform: Tensor, shape: Shape) -> Tensor:
    """A band across the map, from 20-34 % to 65-79 % of one axis."""
    axis = _pick(uniform[:, _PLACE], 2)
    low, high = _share(uniform, 0, 0.20, 0.34), _share(uniform, 1, 0.65, 0.79)
    limits = torch.stack((low, high), -1)
    along_x = (axis == 0)[:, None]
    rows = torch.where(along_x, (limits * shape[0]).floor().long(), _whole(axis, shape[0]))
    cols = torch.where(along_x, _whole(axis, shape[1]), (limits * shape[1]).floor().long())
    return _slots((rows, cols))


def _two_corners(uniform: Tensor, shape: Shape) -> Tensor:
    """Two blocks in opposite corners, 40-54 % of each side, each with its own extent."""
    diagonal = _pick(uniform[:, _PLACE], 2) == 1
    share = [_share(uniform, k, 0.40, 0.54) for k in range(4)]
    near, far = torch.zeros_like(diagonal), torch.ones_like(diagonal)
    return _slots(
        _block(share[0], share[1], near, diagonal, shape),
        _block(share[2], share[3], far, ~diagonal, shape),
    )


def _four_corners(uniform: Tensor, shape: Shape) -> Tensor:
    """A block in each corner, 28-37 % of each side, each with its own extent."""
    share = [_share(uniform, k, 0.28, 0.37) for k in range(8)]
    near = torch.zeros_like(share[0], dtype=torch.bool)
    ends = [(x, y) for x in (near, ~near) for y in (near, ~near)]
    return _slots(
        *(_block(share[2 * k], share[2 * k + 1], x, y, shape) for k, (x, y) in enumerate(ends))
    )


RECTANGULAR_KINDS: dict[str, Rectangles] = {
    "split": _split,
    "corner": _corner,
    "band": _band,
    "two_corners": _two_corners,
    "four_corners": _four_corners,
}
COMPLEMENTED_KINDS = ("band", "four_corners")


def _pick(uniform: Tensor, num: int) -> Tensor:
    return (uniform * num).long()


def _share(uniform: Tensor, index: int, low: float, high: float) -> Tensor:
    return low + (high - low) * uniform[:, _SHARES + index]


def _whole(like: Tensor, size: int) -> Tensor:
    """The whole axis, [E, 2]."""
    return torch.stack((torch.zeros_like(like), torch.full_like(like, size)), -1)


def _anchored(share: Tensor, far: Tensor, size: int) -> Tensor:
    """⌊share · size⌋ cells at the axis's near or far end, [E, 2]."""
    length = (share * size).floor().long()
    start = torch.where(far, size - length, torch.zeros_like(length))
    return torch.stack((start, start + length), -1)


def _block(
    share_x: Tensor, share_y: Tensor, far_x: Tensor, far_y: Tensor, shape: Shape
) -> tuple[Tensor, Tensor]:
    return _anchored(share_x, far_x, shape[0]), _anchored(share_y, far_y, shape[1])


def _slots(*rectangles: tuple[Tensor, Tensor]) -> Tensor:
    """Up to four (rows, columns) intervals as [E, 4, 4] edges; unused slots are empty."""
    edges = [torch.cat(rectangle, -1) for rectangle in rectangles]
    empty = torch.zeros_like(edges[0])
    return torch.stack(edges + [empty] * (4 - len(edges)), 1)


def field_amplitude(shape: Shape, extent: tuple[float, float], exponent: float) -> Tensor:
    """Spectral amplitude k^(−exponent/2) of a Gaussian random field, k the wavenumber.

    Args:
        shape: (R, C).
        extent: size of the map [m]; wavenumbers are per metre, so clusters are as wide as long.
        exponent: the power spectrum falls as k^(−exponent).

    Returns:
        [R, C // 2 + 1] float32, largest value 1, 0 for the mean; layout of `torch.fft.rfft2`.
    """
    (rows, cols), (x_dim, y_dim) = shape, extent
    kx = torch.fft.fftfreq(rows, x_dim / rows, dtype=torch.float64)
    ky = torch.fft.rfftfreq(cols, y_dim / cols, dtype=torch.float64)
    k = torch.hypot(kx[:, None], ky) * max(x_dim, y_dim)
    k[0, 0] = torch.inf
    return k.pow(-exponent / 2).float()


def random_field(noise: Tensor, amplitude: Tensor) -> Tensor:
    """White noise [E, R, C] filtered to a Gaussian random field [E, R, C] float32.

    The field is periodic: what leaves the map at one edge enters at the opposite one.
    """
    spectrum = torch.fft.rfft2(noise.float())
    return torch.fft.irfft2(spectrum * amplitude, s=noise.shape[-2:])


def above_half_range(field: Tensor) -> Tensor:
    """Cells above the middle between an environment's lowest and highest value, [E, R, C] bool."""
    low, high = field.amin((-2, -1), keepdim=True), field.amax((-2, -1), keepdim=True)
    return field > (low + high) / 2
