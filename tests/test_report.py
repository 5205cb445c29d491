"""The HTML report: complete, self-contained, safe to open, and clear about what is missing."""

import base64
import json
import re
from html.parser import HTMLParser

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lib import report

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
EVIL = "<script>alert(1)</script><img src=http://x.test/a.png>"
CLAIMS = "claim,environment,statement,estimate,low,high,verdict,detectable,paper,rule\n"
CLAIMS += f'C1,lake,"{EVIL}",0.12345,-0.05,0.3,inconclusive,0.2,curves,"lead > 0, every K"\n'
CLAIMS += "C4b,lake,likelier,,,,inconclusive,,26,no seed solved anything\n"


def notebook(number, title, *code):
    outputs = [
        new_output("stream", text=EVIL),
        new_output("display_data", {"image/png": base64.b64encode(PNG).decode(), "text/plain": "figure"}),
        new_output("display_data", {"application/javascript": "fetch('http://x')", "text/plain": "script left out"}),
        new_output("display_data", {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "bar left out"}),
        new_output("display_data", {"text/html": "<table><tr><td>cell</td></tr></table>", "text/plain": "x"}),
    ]  # fmt: skip
    cells = [new_markdown_cell(f"# {number} · {title}\n\nprose"), *map(new_code_cell, code)]
    cells[-1].outputs = outputs
    return new_notebook(cells=cells)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Two notebooks with two figures and three tables, and a table that no notebook made."""
    monkeypatch.setattr(report, "results_dir", lambda profile: tmp_path)
    monkeypatch.setattr(report, "applicable", lambda profile: ["02_breadth", "10_claims"])
    for folder in ("executed", "figures", "tables"):
        (tmp_path / folder).mkdir()
    first = notebook("02", "Breadth", 'save_table(t, "leads", p)\nsave_figure(fig, "breadth", d, p)', "save_figure(")
    last = notebook("10", "Claims & more", 'save_table(t, "claims", p)', "save_figure(fig, f'by_{env}', t, profile)")
    for name, nb in (("02_breadth", first), ("10_claims", last)):
        nbformat.write(nb, tmp_path / "executed" / f"{name}.ipynb")
    for i, name in enumerate(("breadth", "by_lake")):
        (tmp_path / f"figures/{name}.png").write_bytes(PNG + bytes([i]))
        (tmp_path / f"figures/{name}.pdf").write_bytes(b"%PDF")
        (tmp_path / f"figures/{name}.csv").write_text("a\n1\n")
    for name, text in (("claims", CLAIMS), ("leads", f'policy,lead\n"{EVIL}",-0.25\n'), ("bench", "rate\n2700\n")):
        (tmp_path / f"tables/{name}.csv").write_text(text)
        (tmp_path / f"tables/{name}.md").write_text("|")
    (tmp_path / "tables/leads.csv.part77").write_text("unfinished")
    steps = {
        "base-lake-1": {"git": {"commit": "abcdef0123456789", "dirty": True}, "result": {"tokens": 1200}},
        "train-lake-2": {"git": {"commit": None, "dirty": None}, "result": {}},
    }
    steps = {k: v | {"started": "2030-01-01", "wall_s": 61.5} for k, v in steps.items()}
    about = {
        "profile": "smoke",
        "seeds": [0, 1],
        "wall_s": 1234.5,
        "versions": {"torch": EVIL},
        "platform": {"cpus": 2},
    }
    (tmp_path / "tables/manifest.json").write_text(json.dumps(about | {"steps": steps}))
    return tmp_path


class Tags(HTMLParser):
    """All tags with their attributes, and the text outside them."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def pages(results):
    index = report.build_report("smoke")
    assert index == results / "report" / "index.html"
    found = {p.name: p.read_text("utf-8") for p in index.parent.iterdir()}
    assert set(found) == {"index.html", "02_breadth.html", "10_claims.html"}
    return found


def test_every_figure_and_table_is_there_once(results, pages):
    tags = Tags(pages["index.html"])
    images = [base64.b64decode(a["src"].partition(",")[2]) for tag, a in tags.found if tag == "img"]
    assert sorted(images) == sorted(p.read_bytes() for p in (results / "figures").glob("*.png"))
    links = [a["href"] for tag, a in tags.found if tag == "a" and a["href"].startswith("../")]
    files = [p for folder in ("figures", "tables") for p in (results / folder).iterdir()]
    assert sorted(links) == sorted(
        f"../{p.parent.name}/{p.name}" for p in files if p.suffix != ".png" and ".part" not in p.name
    )
    order = [pages["index.html"].index(f"<b>{name}</b>") for name in ("claims", "leads", "breadth", "by_lake", "bench")]
    assert order == sorted(order)  # as the notebooks save them; what no notebook saves comes last


def test_a_claim_without_a_number_says_so(pages):
    assert "no value" in Tags(pages["index.html"]).text


def test_local_links_resolve_and_nothing_is_loaded(results, pages):
    for name, text in pages.items():
        tags = Tags(text)
        ids = [a["id"] for _, a in tags.found if "id" in a]
        assert len(ids) == len(set(ids))
        for tag, attributes in tags.found:
            assert tag not in ("script", "link", "iframe", "object", "embed", "base") and "onerror" not in attributes
            if tag == "img":
                assert attributes["src"].startswith("data:image/png;base64,")
            if tag == "a" and (href := attributes["href"]).startswith("#"):
                assert href[1:] in ids
            elif tag == "a":
                assert (results / "report" / href).is_file()
        policy = next(a["content"] for _, a in tags.found if a.get("http-equiv") == "Content-Security-Policy")
        assert "default-src 'none'" in policy and "script-src" not in policy, name
        assert not re.search(r"@import|url\(", text)


def test_text_is_escaped(pages):
    for name, times in (("index.html", 3), ("02_breadth.html", 1)):  # claim, table cell, version; output
        assert EVIL not in pages[name]
        assert Tags(pages[name]).text.count(EVIL) == times
    shown = Tags(pages["02_breadth.html"]).text
    assert "script left out" in shown and "bar left out" in shown and "fetch(" not in shown and "cell" in shown


def test_claims_and_provenance_are_told(pages):
    text = " ".join(Tags(pages["index.html"]).text.split())
    assert "2 inconclusive." in text and "+0.123 [−0.050, +0.300]" in text and "lead > 0, every K" in text
    about = "Profile smoke · seeds 0, 1 · commit abcdef012345 with uncommitted changes, unknown"
    assert text.count(about) >= 3
    assert "1,234 s in the last run; the steps took 123 s" in text and "1,200 in base steps" in text
    assert "10 · Claims & more" in text


def test_cells_are_shown_as_numbers_where_they_are():
    shown = {"0.12349": "0.123", "-0.0": "0.000", "-0.25": "−0.250", "1e-05": "1.0e−05", "16": "16", "-3": "−3"}
    assert {text: report.cell(text) for text in shown} == {text: (short, True) for text, short in shown.items()}
    assert report.cell("") == ("", False) and report.cell("GRPO 0.5") == ("GRPO 0.5", False)


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("tables/claims.csv", "make reproduce PROFILE=smoke first"),
        ("tables/manifest.json", "make reproduce PROFILE=smoke first"),
        ("executed/02_breadth.ipynb", "make reproduce PROFILE=smoke NOTEBOOKS=02_breadth first"),
    ],
)
def test_missing_files_name_the_command(results, file, command, capsys):
    (results / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"{file} is missing: run {command}"):
        report.build_report("smoke")
    assert report.main(["--profile", "smoke"]) == 1 and command in capsys.readouterr().err
    assert not (results / "report").exists()


def test_wrong_input_is_refused(results):
    with pytest.raises(ValueError, match="unknown profile 'huge'; known: tiny, "):
        report.build_report("huge")
    with pytest.raises(ValueError, match="is of profile 'smoke': run make reproduce PROFILE=tiny"):
        report.build_report("tiny")
    (results / "tables/claims.csv").write_text("claim,verdict\nC1,supported\n")
    with pytest.raises(ValueError, match="has no column environment, statement"):
        report.build_report("smoke")
