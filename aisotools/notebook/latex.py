r"""Formulas from a stranger: only commands that set symbols.

MathJax can also link (`\href`), style (`\style`, `\bbox`), mark (`\class`, `\cssId`), define and load. A list
of what is allowed stays right when MathJax learns more.
"""

from __future__ import annotations

# ruff: noqa: SIM905 - a table of words reads better as words
import re

from aisotools.notebook.text import text_of
from aisotools.question import visible

MAX_LATEX_CHARS = 10_000
"""Longest formula that is set."""

_COMMANDS = frozenset(
    """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi
    varpi rho varrho sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi
    Sigma Upsilon Phi Psi Omega aleph beth hbar ell wp Re Im partial nabla infty emptyset varnothing
    imath jmath prime angle sum prod coprod int iint iiint oint bigcup bigcap bigoplus bigotimes bigvee
    bigwedge limits nolimits frac dfrac tfrac cfrac binom dbinom tbinom sqrt root of over choose pm mp
    times div cdot ast star circ bullet cap cup setminus oplus ominus otimes oslash odot wedge vee land
    lor lnot neg dagger ddagger amalg wr leq le geq ge ll gg neq ne equiv sim simeq approx cong propto
    prec succ preceq succeq subset supset subseteq supseteq in ni notin not mid nmid parallel perp
    models vdash dashv asymp doteq lt gt to gets leftarrow rightarrow leftrightarrow Leftarrow
    Rightarrow Leftrightarrow mapsto longmapsto implies iff longrightarrow longleftarrow Longrightarrow
    uparrow downarrow updownarrow Uparrow Downarrow hookrightarrow rightharpoonup xrightarrow xleftarrow
    forall exists nexists top bot therefore because ldots cdots vdots ddots dots dotsc dotsb colon quad
    qquad left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr lfloor rfloor lceil rceil
    langle rangle lvert rvert lVert rVert vert Vert lbrace rbrace backslash hat widehat bar overline
    underline tilde widetilde vec dot ddot acute grave breve check mathring overbrace underbrace overset
    underset stackrel overrightarrow overleftarrow substack sin cos tan cot sec csc arcsin arccos arctan
    sinh cosh tanh coth log ln lg exp lim limsup liminf sup inf max min det dim ker hom arg deg gcd Pr
    mod bmod pmod pod operatorname mathrm mathbf mathit mathsf mathtt mathcal mathbb mathfrak mathscr
    boldsymbol bm text textrm textbf textit displaystyle textstyle scriptstyle begin end hline cr tag
    notag nonumber
    """.split()
)
_ENVIRONMENTS = frozenset(
    """
    matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array cases aligned align align* alignat
    gathered gather gather* split equation equation* multline eqnarray
    """.split()
)
_SIGNS = frozenset("\\,;:!{}|_&# \n")
_COMMAND = re.compile(r"\\([A-Za-z]+|.|\Z)", re.DOTALL)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*(\{[^{}]*\})?")
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\[", r"\]"), (r"\(", r"\)"))


def checked_latex(data: object) -> str:
    """The formula in `data` without its delimiters, fit to be put between others.

    Raises:
        ValueError: If it is more than a formula; says what.
    """
    body = _without_delimiters(text_of(data).strip())
    if len(body) > MAX_LATEX_CHARS:
        raise ValueError(f"{len(body):,} characters are more than {MAX_LATEX_CHARS:,}")
    if visible(body) != body or "$" in body or "%" in body:
        raise ValueError("it holds a character that does not belong in a formula")
    for command in _COMMAND.findall(body):
        if command not in _COMMANDS and command not in _SIGNS:
            raise ValueError(f"the command \\{command} is not one that only sets symbols")
    for environment in _ENVIRONMENT.findall(body):
        if environment[1:-1] not in _ENVIRONMENTS:
            raise ValueError(f"the environment {environment or 'without a name'} is not known here")
    if not _balanced(body):
        raise ValueError("its braces do not match")
    return body.replace("<", r"\lt ").replace(">", r"\gt ")


def _without_delimiters(text: str) -> str:
    for start, end in _DELIMITERS:
        if text.startswith(start) and text.endswith(end) and len(text) >= len(start) + len(end):
            return text[len(start) : -len(end)].strip()
    return text


def _balanced(body: str) -> bool:
    depth = 0
    for char in _COMMAND.sub("", body):
        depth += (char == "{") - (char == "}")
        if not 0 <= depth <= 60:
            return False
    return depth == 0
