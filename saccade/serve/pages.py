"""Routes of the web pages and their static files."""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

PAGE_FOLDER = Path(__file__).parent / "page"
VIEW_PAGE_FOLDER = Path(__file__).parent.parent / "view" / "page"  # the interactive attention page


def add_pages(app: FastAPI) -> None:
    """Add the page at /, the API reference at /docs, and their static files."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE_FOLDER / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(PAGE_FOLDER / "docs.html")

    mount_static_files(app)


def mount_static_files(app: FastAPI) -> None:
    """Serve the scripts and stylesheets of all pages under /static."""
    app.mount("/static/view", StaticFiles(directory=VIEW_PAGE_FOLDER))
    app.mount("/static", StaticFiles(directory=PAGE_FOLDER))
