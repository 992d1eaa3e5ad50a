import json

import pytest


@pytest.mark.slow
def test_a_folder_is_made_imported_and_measured(script, command, tmp_path, capsys):
    sizes = ["--layers", "1", "--width", "64", "--vocabulary", "400", "--repeat", "1"]
    command("import_speed.py", *sizes, "--out", tmp_path)

    script("import_speed").main()

    rows = {row["what"]: row for row in json.loads((tmp_path / "import_speed.json").read_text())["rows"]}
    assert rows["import and first token, wall clock"]["value"] >= rows["first token, wall clock"]["value"] / 2 > 0
    assert "first token, processor time" in capsys.readouterr().out
