"""A route on the map of its world, drawn beside the attention weights of its actions."""

from __future__ import annotations

from pathlib import Path

from saccade.plotting import Axes, Figure
from saccade.view.labels import check_map, shorten, to_readable
from saccade.view.picture import THEMES, Panel, apply_style, check_picture_path, save_figure, wrap_title
from saccade_worlds.navigation.route_map import Route

CELL_INCHES = 0.24  # of the heatmap
WORLD_INCHES = 4.2  # of the map of the world
DIRECTIONS = {0: (0, -1), 90: (1, 0), 180: (0, 1), 270: (-1, 0)}
MAX_LABEL_LENGTH = 24  # characters


def draw_route(panel: Panel, *, route: Route, path: str | Path, title: str = "", theme: str = "light") -> Path:
    """Draw the world with the route at the left and the heatmap of attention weights at the right."""
    path = check_picture_path(path, theme=theme)
    weights = check_map(panel.weights, rows=panel.rows, columns=panel.columns, name="weights")
    rows, columns = (
        [shorten(to_readable(label), max_length=MAX_LABEL_LENGTH) for label in side]
        for side in (panel.rows, panel.columns)
    )
    with apply_style([title, *rows, *columns, *route.items.values()], theme=theme):
        width = WORLD_INCHES + 2.2 + CELL_INCHES * len(columns)
        figure = Figure(figsize=(width, max(WORLD_INCHES, 1.6 + CELL_INCHES * len(rows))), layout="constrained")
        world, heatmap = figure.subplots(1, 2, width_ratios=(WORLD_INCHES, width - WORLD_INCHES))
        _draw_world(world, route, ink=THEMES[theme][2])
        heatmap.imshow(weights, cmap=THEMES[theme][0], vmin=0, vmax=max(float(weights.max()), 1e-9), aspect="auto")
        heatmap.set_xticks(range(len(columns)), columns, rotation=90)
        heatmap.set_yticks(range(len(rows)), [f"{n}  {row}" for n, row in enumerate(rows, start=1)])
        heatmap.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
        figure.suptitle(wrap_title(title, inches=width), fontsize=12)
        save_figure(figure, path)
    return path


def _draw_world(axes: Axes, route: Route, *, ink: str) -> None:
    """Draw edges in the colors of their floors, items by name, and the route as arrows numbered by action."""
    colours = route.colours
    for (start, end), floor in route.edges.items():
        if start < end:
            axes.plot(*zip(start, end, strict=True), color=colours[floor], linewidth=7, alpha=0.45, zorder=1)
    for (x, y), item in route.items.items():
        axes.plot(x, y, ".", color=ink, markersize=4, zorder=2)
        axes.annotate(item, (x, y), (-4, 5), textcoords="offset points", ha="right", fontsize=7, zorder=4)
    for number, (x, y, degrees) in enumerate(route.poses, start=1):
        dx, dy = DIRECTIONS[degrees]
        axes.annotate(
            "",
            (x + 0.38 * dx, y + 0.38 * dy),
            (x, y),
            zorder=3,
            arrowprops={"arrowstyle": "->", "color": ink, "lw": 1.4},
        )
        label_position = (x + 0.28 * dx, y + 0.12) if dx else (x + 0.12, y + 0.3 * dy)  # away from names of items
        axes.annotate(str(number), label_position, ha="center", va="center", fontsize=8)
    columns, rows = zip(*route.items, strict=True)
    axes.set(aspect="equal", xlim=(min(columns) - 0.6, max(columns) + 0.6), ylim=(max(rows) + 0.6, min(rows) - 0.6))
    axes.axis("off")
