"""A route on the map of its world, drawn beside what each of its actions looked at."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from saccade.view.labels import checked, readable, shortened
from saccade.view.picture import THEMES, Panel, check_picture, save, styled, title_lines
from saccade.view.route import Route

ACTS = 0.24  # inches of a row or column of the map of weights
SIDE = 4.2  # inches of the map of the world
TO = {0: (0, -1), 90: (1, 0), 180: (0, 1), 270: (-1, 0)}
LONGEST_LABEL = 24  # characters


def draw_route(panel: Panel, *, route: Route, path: str | Path, title: str = "", theme: str = "light") -> Path:
    """The world with the route at the left, and the map of weights at the right."""
    path = check_picture(path, theme=theme)
    weights = checked(panel.weights, rows=panel.rows, columns=panel.columns, name="weights")
    rows, columns = (
        [shortened(readable(one), most=LONGEST_LABEL) for one in side] for side in (panel.rows, panel.columns)
    )
    with styled([title, *rows, *columns, *route.items.values()], theme=theme):
        wide = SIDE + 2.2 + ACTS * len(columns)
        figure = Figure(figsize=(wide, max(SIDE, 1.6 + ACTS * len(rows))), layout="constrained")
        world, looks = figure.subplots(1, 2, width_ratios=(SIDE, wide - SIDE))
        _draw_world(world, route, ink=THEMES[theme][2])
        looks.imshow(weights, cmap=THEMES[theme][0], vmin=0, vmax=max(float(weights.max()), 1e-9), aspect="auto")
        looks.set_xticks(range(len(columns)), columns, rotation=90)
        looks.set_yticks(range(len(rows)), [f"{n}  {row}" for n, row in enumerate(rows, start=1)])
        looks.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
        figure.suptitle(title_lines(title, inches=wide), fontsize=12)
        save(figure, path)
    return path


def _draw_world(axes: Axes, route: Route, *, ink: str) -> None:
    """Ways in the colours of their floors, items by name, the route as arrows with the number of each action."""
    colours = route.colours
    for (one, other), floor in route.ways.items():
        if one < other:
            axes.plot(*zip(one, other, strict=True), color=colours[floor], linewidth=7, alpha=0.45, zorder=1)
    for (x, y), item in route.items.items():
        axes.plot(x, y, ".", color=ink, markersize=4, zorder=2)
        axes.annotate(item, (x, y), (-4, 5), textcoords="offset points", ha="right", fontsize=7, zorder=4)
    for number, (x, y, to) in enumerate(route.poses, start=1):
        # Several actions at one place stand around it, by where one looks to.
        dx, dy = TO[to]
        axes.annotate(
            "",
            (x + 0.38 * dx, y + 0.38 * dy),
            (x, y),
            zorder=3,
            arrowprops={"arrowstyle": "->", "color": ink, "lw": 1.4},
        )
        beside = (x + 0.28 * dx, y + 0.12) if dx else (x + 0.12, y + 0.3 * dy)  # where no item is named
        axes.annotate(str(number), beside, ha="center", va="center", fontsize=8)
    columns, rows = zip(*route.items, strict=True)
    axes.set(aspect="equal", xlim=(min(columns) - 0.6, max(columns) + 0.6), ylim=(max(rows) + 0.6, min(rows) - 0.6))
    axes.axis("off")
