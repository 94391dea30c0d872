"""`python -m verify`: judge every history of verify/histories, and compare with what MANIFEST.json expects of it."""

import json
import sys
import time
from collections import Counter
from pathlib import Path

from verify.check import check

FOLDER = Path(__file__).parent / "histories"


def main() -> int:
    """Print a table; 1 if one of ours does not hold, or one of the others does."""
    began, wrong = time.monotonic(), 0
    listed = json.loads((FOLDER / "MANIFEST.json").read_text(encoding="utf-8"))
    names = {each["file"] for each in listed}
    if unlisted := sorted(path.name for path in FOLDER.glob("*.jsonl*") if path.name not in names):
        print(f"not in MANIFEST.json: {', '.join(unlisted)}")
        wrong += 1
    print(f"{'history':<38}{'operations':>12}  {'expected':<10} found")
    for each in listed:
        found = Counter(rule for rule, _ in check(str(FOLDER / each["file"])).violations)
        convicted = each["expect"] == "convicted"
        right = bool(found) == convicted and set(each["rules"]) <= set(found)
        wrong += not right
        said = ", ".join(f"{rule} {count}" for rule, count in sorted(found.items())) or "holds"
        print(f"{each['file']:<38}{each['operations']:>12,}  {each['expect']:<10} {said}{'' if right else '  WRONG'}")
    print(f"{len(listed)} histories in {time.monotonic() - began:.0f} s, {wrong} not as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
