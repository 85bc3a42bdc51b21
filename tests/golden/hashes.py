"""`python -m tests.golden.hashes` prints the hash of every golden material, one a line."""

from tests.golden.materials import MATERIALS, assembled


def lines() -> list[str]:
    return [f"{name} {assembled(name).snapshot.hash}" for name in sorted(MATERIALS)]


if __name__ == "__main__":
    print("\n".join(lines()))
