"""The browser side as text: the modules fit together, every word exists in both languages, nothing is fetched."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from widgets import _assets as assets

ENTRIES = ["player.js", "compare.js", "live.js", "curve.js"]
SCRIPTS = sorted(p.name for p in assets.STATIC.glob("*.js"))
WIDGETS = Path(assets.__file__).parent
# keys made of a fixed part and a value; each value is a kind, a status, a policy, …
PREFIXES = ("kind.", "legend.", "mode.", "policy.", "reason.", "live.", "event.", "kpi.", "compare.")


def test_every_word_has_both_languages_and_the_same_blanks():
    for key, entry in assets.words().items():
        assert set(entry) == {"zh", "en"}, key
        assert entry["zh"].strip() and entry["en"].strip(), key
        blanks = [set(re.findall(r"\{(\w+)\}", entry[lang])) for lang in ("zh", "en")]
        assert blanks[0] == blanks[1], key


def test_every_word_that_is_used_exists():
    used = set()
    for name in SCRIPTS:
        text = assets.read(name)
        text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("/", "*")))
        used |= set(re.findall(r'\bt\(\s*"([\w.-]+)"', text)) | set(re.findall(r'\["((?:start|done)\.\w+)"', text))
    prefixed = {"predict.py": "predict", "policylab.py": "lab", "explorer.py": "roof", "kvcalc.py": "kv"}
    for path in WIDGETS.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r'translate\([\w.]+, "([\w.]+)"', text))
        if prefix := prefixed.get(path.name):
            used |= {f"{prefix}.{key}" for key in re.findall(r'self\._t\(["\'](\w+)["\']', text)}
    assert len(used) > 60
    assert sorted(used - set(assets.words())) == []
    for prefix in PREFIXES:
        assert any(key.startswith(prefix) for key in assets.words()), prefix


def test_one_thing_has_one_name():
    """The course's text says slot, prefill, decode and block; the widgets say nothing else for them."""
    for key, entry in assets.words().items():
        assert not re.search("槽位|预填|解码|块", entry["zh"]), (key, entry["zh"])
    for kind in ("prefill", "decode", "held"):
        assert assets.translate("zh", f"legend.{kind}") == assets.translate("zh", f"kind.{kind}")
    assert assets.translate("zh", "legend.wasted") == f"{assets.translate('zh', 'kind.wasted')}（陪跑）"


def test_every_policy_has_its_sentence():
    import minirt

    for name in minirt.POLICIES:
        assert f"policy.{name}" in assets.words(), name


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_bundle_is_one_module_that_fetches_nothing(entry):
    text = assets.bundle(entry)
    assert not re.search(r"^import ", text, re.MULTILINE)
    assert re.findall(r"^export .*", text, re.MULTILINE) == ["export default {"]
    assert "http://" not in text and "https://" not in text
    for name in assets.modules(entry):
        assert f"// ---- {name}" in text


def test_top_level_names_are_unique_among_the_modules():
    names = Counter(
        name
        for script in SCRIPTS
        for name in re.findall(
            r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", assets.read(script), re.MULTILINE
        )
    )
    assert [n for n, times in names.items() if times > 1] == []


def test_nothing_is_fetched_by_the_style_sheet_either():
    assert "url(" not in assets.styles() and "@import" not in assets.styles()


def test_an_unknown_language_is_named():
    with pytest.raises(ValueError, match="fr"):
        assets.check_lang("fr")
