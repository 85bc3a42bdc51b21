"""What a file is, by the ending of its name: its media type and its knowledge class.

Not handled: guessing by content; an unknown ending is plain text and a document.
"""

from pathlib import PurePosixPath

from app.scope.vocabulary import KnowledgeClass

_PROSE = {
    ".adoc": "text/asciidoc",
    ".asciidoc": "text/asciidoc",
    ".csv": "text/csv",
    ".htm": "text/html",
    ".html": "text/html",
    ".markdown": "text/markdown",
    ".md": "text/markdown",
    ".mdx": "text/markdown",
    ".org": "text/org",
    ".rst": "text/x-rst",
    ".svg": "image/svg+xml",
    ".tex": "text/x-tex",
    ".tsv": "text/tab-separated-values",
    ".txt": "text/plain",
    ".xml": "application/xml",
}
_CODE = {
    ".bash": "text/x-sh",
    ".c": "text/x-csrc",
    ".cc": "text/x-c++src",
    ".clj": "text/x-clojure",
    ".cpp": "text/x-c++src",
    ".cs": "text/x-csharp",
    ".css": "text/css",
    ".cxx": "text/x-c++src",
    ".dart": "text/x-dart",
    ".erl": "text/x-erlang",
    ".ex": "text/x-elixir",
    ".exs": "text/x-elixir",
    ".fs": "text/x-fsharp",
    ".go": "text/x-go",
    ".graphql": "text/x-graphql",
    ".groovy": "text/x-groovy",
    ".h": "text/x-chdr",
    ".hpp": "text/x-c++hdr",
    ".hs": "text/x-haskell",
    ".java": "text/x-java",
    ".js": "text/javascript",
    ".json": "application/json",
    ".jsx": "text/javascript",
    ".kt": "text/x-kotlin",
    ".kts": "text/x-kotlin",
    ".lua": "text/x-lua",
    ".m": "text/x-objective-c",
    ".mjs": "text/javascript",
    ".ml": "text/x-ocaml",
    ".php": "text/x-php",
    ".pl": "text/x-perl",
    ".proto": "text/x-protobuf",
    ".ps1": "text/x-powershell",
    ".py": "text/x-python",
    ".pyi": "text/x-python",
    ".r": "text/x-r",
    ".rb": "text/x-ruby",
    ".rs": "text/x-rust",
    ".scala": "text/x-scala",
    ".scss": "text/x-scss",
    ".sh": "text/x-sh",
    ".sql": "application/sql",
    ".swift": "text/x-swift",
    ".tf": "text/x-terraform",
    ".toml": "application/toml",
    ".ts": "application/typescript",
    ".tsx": "application/typescript",
    ".vb": "text/x-vb",
    ".vue": "text/x-vue",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".zig": "text/x-zig",
    ".zsh": "text/x-sh",
}
_CODE_NAMES = {"dockerfile": "text/x-dockerfile", "makefile": "text/x-makefile"}


def kind_of(name: str) -> tuple[str, KnowledgeClass]:
    """The media type and the class of a file by its name, in any case of letters."""
    path = PurePosixPath(name.lower())
    code = _CODE.get(path.suffix) or _CODE_NAMES.get(path.name)
    if code is not None:
        return code, KnowledgeClass.CODE
    return _PROSE.get(path.suffix, "text/plain"), KnowledgeClass.DOCUMENTS
