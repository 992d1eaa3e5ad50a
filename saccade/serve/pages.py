"""The page to try a model, and the files that it is made of."""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

HERE = Path(__file__).parent / "page"
VIEW = Path(__file__).parent.parent / "view" / "page"  # the interactive view of attention


def add_pages(app: FastAPI) -> None:
    """The page at /, the list of the API at /docs, and their files."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(HERE / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(HERE / "docs.html")

    add_files(app)


def add_files(app: FastAPI) -> None:
    """Scripts and styles of all pages, under /static."""
    app.mount("/static/view", StaticFiles(directory=VIEW))
    app.mount("/static", StaticFiles(directory=HERE))
