"""The roofline of a model: the table, and a valid SVG picture."""

from __future__ import annotations

from xml.etree import ElementTree

from flatout.base.tree import Doc, Picture, Table, TextLine, to_data, to_text
from flatout.plan.prediction import COMPUTE, LAUNCH, MEMORY, OperatorGroup, Prediction
from flatout.plan.roofline import draw, roofline, table

SVG = "{http://www.w3.org/2000/svg}"
GROUPS = (
    OperatorGroup("matrix products", 6e12, 1e10, 100, 0.010, COMPUTE),
    OperatorGroup("element by element", 0.0, 2e10, 80, 0.008, MEMORY),
    OperatorGroup("loss", 0.0, 1e9, 4, 0.0019, MEMORY),
    OperatorGroup("other", 0.0, 1e3, 4, 0.0001, LAUNCH),
)
PREDICTION = Prediction(0.02, 1e9, 8e14, COMPUTE, 0.5, ceiling_bytes_per_s=4e12, groups=GROUPS)


def test_the_table_is_sorted_by_time_and_folds_small_groups() -> None:
    text = to_text(Doc((table(PREDICTION),))).splitlines()
    assert [line.split("  ")[0] for line in text[1:4]] == ["matrix products", "element by element", "loss"]
    assert "50%" in text[1] and "600" in text[1] and text[1].endswith("compute") and "none" in text[2]
    assert text[4] == "(1 more, each below 2% of the time)"
    rows = to_data(Doc((table(PREDICTION),)))["roofline"]
    assert len(rows) == 4 and abs(sum(row["share"] for row in rows) - 1) < 1e-9
    assert rows[0] == {
        "group": "matrix products", "share": 0.5, "seconds": 0.01, "intensity": 600.0, "flops": 6e12, "bytes": 1e10,
        "operators": 100, "bound": "compute",
    }  # fmt: skip


def test_the_picture_holds_roofs_and_groups() -> None:
    root = ElementTree.fromstring(draw(PREDICTION))
    circles = {circle.get("class"): circle for circle in root.iter(f"{SVG}circle")}
    assert len(list(root.iter(f"{SVG}circle"))) == 4 and set(circles) == {"dot", "bytes"}
    words = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert any(word.startswith("matrix products, 50%") for word in words) and "800 TFLOP/s" in words and "4 TB/s" in words
    (roof,) = root.iter(f"{SVG}polyline")
    corners = [tuple(map(float, corner.split(","))) for corner in str(roof.get("points")).split()]
    assert corners[0][1] > corners[1][1] == corners[2][1]  # up the slope, then level
    product = next(circle for circle in root.iter(f"{SVG}circle") if circle.get("class") == "dot")
    assert float(str(product.get("cy"))) > corners[1][1]  # below its roof
    width, height = float(str(root.get("width"))), float(str(root.get("height")))
    assert all(0 < float(str(c.get("cx"))) < width and 0 < float(str(c.get("cy"))) < height for c in root.iter(f"{SVG}circle"))


def test_larger_dots_take_longer() -> None:
    radii = [float(str(circle.get("r"))) for circle in ElementTree.fromstring(draw(PREDICTION)).iter(f"{SVG}circle")]
    assert radii == sorted(radii, reverse=True) and radii[0] > 2 * radii[-1]


def test_extreme_figures_give_a_valid_picture() -> None:
    tiny = OperatorGroup("<b>", 1.0, 1e12, 1, 100.0, MEMORY)
    for groups in ((tiny,), (OperatorGroup("nothing", 0.0, 0.0, 1, 0.0, LAUNCH),), GROUPS * 4):
        ElementTree.fromstring(draw(Prediction(1.0, None, 1e9, ceiling_bytes_per_s=1e10, groups=groups)))
    assert "<b>" not in draw(Prediction(1.0, None, 1e9, ceiling_bytes_per_s=1e10, groups=(tiny,)))


def test_without_a_prediction_nothing_is_shown() -> None:
    assert roofline(Prediction(reason="not probed")) == []
    assert [type(node) for node in roofline(Prediction(0.02, groups=GROUPS))] == [TextLine, Table]
    assert [type(node) for node in roofline(PREDICTION)] == [TextLine, Table, Picture]
