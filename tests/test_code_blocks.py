"""The check of the documentation's code blocks sees what a reader would stumble over."""

import pytest

from tests.docs.run_code_blocks import (
    Page,
    broken_links,
    compared,
    difference,
    pages_of,
    wrong_with,
)

TABBED = """# Page

```sh
ltrag methods \\
    --help
$ pip install 'ltrag-plugins[fit]' && pip install --no-deps weights==1
```

<!-- tab: LangChain -->
**LangChain**

```sh
pip install 'ltrag-plugins[langchain]'  # or another
```

```python
print("chain")
```

<!-- tab: LlamaIndex -->
**LlamaIndex**

```sh
pip install 'ltrag-plugins[llama-index]'
```

```python
print("engine")
```

<!-- end of tabs -->

```text
chain
```

```python
print(1)
```
"""


@pytest.fixture
def page(tmp_path):
    """Writes a page, and gives it as its readers see it."""

    def written(text: str) -> list[Page]:
        (tmp_path / "page.md").write_text(text, encoding="utf-8")
        return [*pages_of(tmp_path / "page.md")]

    return written


def test_a_page_is_read_once_for_each_tab(page):
    chain, engine = page(TABBED)
    assert [chain.tab, engine.tab] == ["LangChain", "LlamaIndex"]
    assert 'print("chain")' in chain.program()
    assert 'print("engine")' not in chain.program()
    assert chain.text.count("\n") == engine.text.count("\n") == TABBED.count("\n")
    assert chain.installed() == ({"fit", "langchain"}, {"weights"})
    assert engine.installed() == ({"fit", "llama-index"}, {"weights"})


def test_a_program_has_each_line_where_the_page_has_it(page):
    _, engine = page(TABBED)
    lines = engine.program().splitlines()
    assert lines[TABBED.splitlines().index('print("engine")')] == 'print("engine")'


def test_what_a_block_prints_is_compared_with_what_stands_after_the_tabs(page):
    chain, engine = page(TABBED)
    assert len([*compared(chain, ["chain\n", ""])]) == 0
    [other] = compared(engine, ["engine\n", ""])
    assert "-chain" in other
    assert "+engine" in other


def test_a_page_that_does_not_show_what_it_prints_is_named_with_the_line(page):
    chain, _ = page(TABBED)
    [hidden] = compared(chain, ["chain\n", "1\n"])
    assert hidden.startswith(f"line {TABBED.splitlines().index('print(1)')}:")


@pytest.mark.parametrize(
    ("shown", "printed", "own", "alike"),
    [
        ("a\nb\n", "a\nb\n", False, True),
        ("a\nb\n", "a\nc\n", False, False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", False, True),
        ("a\n...\n", "a\n", False, True),
        ("a\n...\nd\n", "a\nb\n", False, False),
        ("calls 3, 0.2 seconds\n", "calls 3, 7e-05 seconds\n", False, True),
        ("calls 3, 0.2 seconds\n", "calls 4, 0.2 seconds\n", False, False),
        ("calls 3\n", "calls 4\n", True, True),
        ("rate   0.4 (95 %)\n", "rate   -\n", True, True),
        ("rate   0.4\n", "share   0.4\n", True, False),
    ],
)
def test_lines_are_compared_as_they_are_or_by_their_words(shown, printed, own, alike):
    assert (difference(shown, printed, own=own) == "") is alike


def test_dead_links_are_found_by_path_address_and_heading(tmp_path):
    (tmp_path / "there.md").write_text(
        '# A `heading`, with [a link](x.md)\n<a id="old"></a>\n', encoding="utf-8"
    )
    ours = "https://github.com/ltrag-plugins/ltrag-plugins/blob/main"
    alive = [
        "there.md",
        "there.md#a-heading-with-a-link",
        f"{ours}/README.md",
        "https://a.example/",
    ]
    dead = ["gone.md", "there.md#other", f"{ours}/gone.md"]
    text = "".join(f"[a]({link})\n" for link in alive + dead)
    (tmp_path / "page.md").write_text(f"{text}```sh\n[a](gone.md)\n```\n", encoding="utf-8")
    assert broken_links(tmp_path / "page.md") == dead


def test_syntax_that_only_the_site_knows_is_named(tmp_path):
    (tmp_path / "page.md").write_text("# Page\n\n/// tab | A\n///\n", encoding="utf-8")
    assert [*wrong_with(tmp_path / "page.md")] == ["line 3: syntax that only the site knows"]
