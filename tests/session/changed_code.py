"""Commands that run a file of the workspace in ways that do not name it, or name it late.

Each case is a command, the files that it needs, and the one among them that is changed after an approval was
remembered. `cases` makes all combinations of who runs it, how it is named, and what stands in front.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to run code of the workspace.

    Attributes:
        command: What `bash` is given.
        files: The content of each file that there is, by its path.
        target: The file whose code runs, and is changed.
    """

    command: str
    files: Mapping[str, str]
    target: str

    @property
    def is_held_out(self) -> bool:
        """True for the half at which nobody looks while the defence is built."""
        return bool(zlib.crc32(f"{self.command}\0{self.target}".encode()) & 1)


# Program, ending of its files, code that does nothing.
_INTERPRETERS = (
    ("bash", "sh", ":"),
    ("sh", "sh", ":"),
    ("dash -e", "sh", ":"),
    ("python3", "py", "1"),
    ("python -W ignore", "py", "1"),
    ("node", "js", "1"),
    ("perl", "pl", "1;"),
    ("ruby", "rb", "1"),
    ("Rscript", "R", "1"),
    ("lua", "lua", "x = 1"),
    ("php", "php", "<?php 1;"),
    ("julia", "jl", "1"),
    ("make -f", "mk", "all:"),
    ("just -f", "just", "all:"),
    ("awk -f", "awk", "{print 1}"),
    ("sed -f", "sed", "p"),
    ("source", "sh", ":"),
    (".", "sh", ":"),
)

# What may stand in front of a program that is run with a file; `{}` is the program and the file.
_WRAPPERS = (
    "{}",
    "env {}",
    "env -i A=1 {}",
    "nice -n 5 {}",
    "timeout 5 {}",
    "sudo {}",
    "nohup {}",
    "setsid {}",
    "stdbuf -o0 {}",
    "time {}",
    "command {}",
    "exec {}",
    "bash -c '{}'",
    "sh -c 'cd . && {}'",
    "eval '{}'",
    "( {} )",
    "{{ {}; }} | tail -1",
    "if true; then {}; fi",
    "for i in 1 2; do {}; done",
    "f() {{ {}; }}; f",
    "strace -f {}",
    "flock lock {}",
    "watch -n 1 '{}'",
    "script -c '{}'",
    "unshare {}",
    "xvfb-run {}",
    "busybox {}",
    "git -c alias.go='!{}' go",
    "hyperfine '{}'",
    "entr {}",
)

# How a file is named; `{run}` is the program, `{file}` the path.
_NAMINGS = (
    "{run} {file}",
    "{run} ./{file}",
    "{run} $PWD/{file}",
    "F={file}; {run} $F",
    'F={file}; {run} "${{F}}"',
    "F={stem}; {run} $F.{ending}",
    "{run} {glob}",
    "{run} $(echo {file})",
    "{run} `echo {file}`",
    "{run} $(ls | grep {stem})",
    "echo {file} | xargs {run}",
    "ls | xargs -n1 {run}",
    "ls | xargs -I{{}} {run} {{}}",
    "xargs -a list {run}",
    "xargs {run} < list",
    "find . -name '{glob}' -exec {run} {{}} \\;",
    "find . -type f -execdir {run} {{}} +",
    "find . -exec {run} {file} \\;",
    "for f in {glob}; do {run} $f; done",
    "for f in $(cat list); do {run} $f; done",
    "while read f; do {run} $f; done < list",
    "cat list | while read f; do {run} $f; done",
    "parallel {run} ::: {file}",
    "parallel -a list {run}",
    "R='{run}'; $R {file}",
    "cd d/.. && {run} {file}",
    "ln -sf {file} l && {run} l",
    "set -- {file}; {run} $1",
    "A=({file}); {run} ${{A[0]}}",
    "read F < list; {run} $F",
    "mapfile -t L < list; {run} ${{L[0]}}",
    "{run} {stem}.{{{ending},x}}",
    "printf '%s' {file} | xargs -0 {run}",
    'f() {{ {run} "$1"; }}; f {file}',
    "{run} $(head -1 list)",
    "{run} $(basename d/{file})",
)

# Code that runs another file, whose name it puts together or reads; by the ending of the code.
_RUNNERS = {
    "bash via.sh": (
        "via.sh",
        ("V={stem}; bash $V.{ending}", "bash $(cat list)", "for f in *.{ending}; do . ./$f; done"),
    ),
    "sh via": (
        "via",
        ('. "./$(cat list)"', "cat list | xargs sh", "sh *.{ending}", "python3 {stem}.{ending}"),
    ),
    "./via.sh": (
        "via.sh",
        ("#!/bin/sh\npython3 {file}", "#!/bin/sh\nnode {file}", "#!/bin/sh\nexec $1", "make -f {file}"),
    ),
    "python3 via.py": (
        "via.py",
        (
            "import os; os.system('sh {stem}' + '.{ending}')",
            "import subprocess as s; s.run(['sh', open('list').read().strip()])",
            "exec(open(open('list').read().strip()).read())",
            "import importlib as i; i.import_module('{stem}')",
            "import runpy, glob; [runpy.run_path(p) for p in glob.glob('*.{ending}')]",
            "__import__('{stem}')",
            "from os import *; system('sh ' + '{stem}' + '.{ending}')",
        ),
    ),
    "node via.js": (
        "via.js",
        (
            "require('./' + '{stem}')",
            "require('child_process').execSync('sh ' + require('fs').readFileSync('list'))",
            "eval(require('fs').readFileSync('{stem}' + '.{ending}', 'utf8'))",
            "import('./' + process.argv[2])",
        ),
    ),
    "perl via.pl": (
        "via.pl",
        ("my $f = '{stem}'; do \"./$f.{ending}\";", "system('sh ' . `cat list`);", 'require "./$ARGV[0]";'),
    ),
    "ruby via.rb": (
        "via.rb",
        (
            "load '{stem}' + '.{ending}'",
            "system('sh', File.read('list').strip)",
            "`sh #{{File.read('list')}}`",
        ),
    ),
    "Rscript via.R": (
        "via.R",
        ("source(paste0('{stem}', '.{ending}'))", "system(paste('sh', readLines('list')))"),
    ),
    "make": (
        "Makefile",
        (
            "all:\n\tsh $(wildcard *.{ending})",
            "all:\n\tsh `cat list`",
            "include *.{ending}",
            "F={file}\nall:\n\tsh $(F)",
        ),
    ),
    "just": ("justfile", ("all:\n  sh `cat list`", "all:\n  python3 {file}", "import '{file}'")),
    "awk -f via.awk list": ("via.awk", ('{{ system("sh " $0) }}', '{{ "sh " $0 | getline }}')),
    "npm test": (
        "package.json",
        ('{{"scripts": {{"test": "node {file}"}}}}', '{{"scripts": {{"test": "sh `cat list`"}}}}'),
    ),
    "tox": ("tox.ini", ("[testenv]\ncommands = sh {file}",)),
    "pytest -q": (
        "conftest.py",
        (
            "import {stem}",
            "pytest_plugins = ['{stem}']",
            "import importlib; importlib.import_module(open('list').read())",
        ),
    ),
    "snakemake -c1": ("Snakefile", ("include: '{file}'", "rule all:\n  shell: 'sh ' + open('list').read()")),
    "cmake .": ("CMakeLists.txt", ("include({file})", "execute_process(COMMAND sh {file})")),
    'awk \'BEGIN{{while ((getline f < "list") > 0) system("sh " f)}}\'': ("x", (":",)),
    "sed -n 's/.*/sh &/e' list": ("x", (":",)),
}  # fmt: skip - one row for each

# Settings in front of a program that make it load a file by itself.
_SETTINGS = (
    ('PYTHONPATH=lib python3 -c "import l"', "lib/l.py"),
    ('PYTHONPATH=$PWD/lib python3 -c "import l"', "lib/l.py"),
    ('export PYTHONPATH=lib; python3 -c "import l.m"', "lib/l/m.py"),
    ("env PYTHONPATH=lib:x python3 -m l", "lib/l.py"),
    ("PYTHONSTARTUP=s.py python3 -i", "s.py"),
    ("PYTHONHOME=h python3 -c 1", "h/lib/python3.11/site.py"),
    ("PATH=$PWD/d:$PATH x", "d/x"),
    ("PATH=d:$PATH; x", "d/x"),
    ("env PATH=$PWD/d x", "d/x"),
    ("export PATH=$PWD/d:$PATH && ls", "d/ls"),
    ('PATH="d:$PATH" git status', "d/git"),
    ("hash -p d/x ls; ls", "d/x"),
    ("alias ls=d/x; ls", "d/x"),
    ("BASH_ENV=e.sh bash -c :", "e.sh"),
    ("ENV=e.sh sh -i", "e.sh"),
    ("bash --rcfile rc -i -c :", "rc"),
    ("bash --init-file rc -i -c :", "rc"),
    ("PERL5LIB=lib perl -MFoo -e 1", "lib/Foo.pm"),
    ("PERL5OPT=-MFoo perl -Ilib -e 1", "lib/Foo.pm"),
    ("RUBYLIB=lib ruby -rfoo -e 1", "lib/foo.rb"),
    ("RUBYOPT=-r./foo ruby -e 1", "foo.rb"),
    ("ruby -I lib -r foo -e 1", "lib/foo.rb"),
    ("NODE_PATH=lib node -e \"require('foo')\"", "lib/foo.js"),
    ("NODE_OPTIONS='--require ./p.js' node -e 1", "p.js"),
    ("node -r ./p.js -e 1", "p.js"),
    ("node --import ./p.mjs -e 1", "p.mjs"),
    ("R_PROFILE_USER=r.R Rscript -e 1", "r.R"),
    ("R_LIBS=lib Rscript -e 'library(foo)'", "lib/foo/R/foo.R"),
    ("LUA_PATH='lib/?.lua' lua -e \"require 'foo'\"", "lib/foo.lua"),
    ("AWKPATH=lib awk -f p x", "lib/p"),
    ("MAKEFILES=m.mk make", "m.mk"),
    ("make -C d", "d/Makefile"),
    ("make -I inc", "inc/rules.mk"),
    ("LD_PRELOAD=./p.so ls", "p.so"),
    ("LD_LIBRARY_PATH=lib ls", "lib/libc.so.6"),
    ("GIT_SSH=./s.sh git fetch", "s.sh"),
    ("GIT_SSH_COMMAND='sh s.sh' git fetch", "s.sh"),
    ("GIT_EXTERNAL_DIFF=./s.sh git diff", "s.sh"),
    ("GIT_EDITOR=./s.sh git commit", "s.sh"),
    ("GIT_EXEC_PATH=d git foo", "d/git-foo"),
    ("git -c core.pager=./s.sh log", "s.sh"),
    ("git -c core.hooksPath=h commit -m x", "h/pre-commit"),
    ("git -c core.fsmonitor=./s.sh status", "s.sh"),
    ("git -c alias.x='!sh s.sh' x", "s.sh"),
    ("git difftool -x ./s.sh", "s.sh"),
    ("git bisect run ./s.sh", "s.sh"),
    ("git rebase --exec 'sh s.sh' HEAD~1", "s.sh"),
    ("git submodule foreach 'sh ../s.sh'", "s.sh"),
    ("EDITOR=./s.sh crontab -e", "s.sh"),
    ("PAGER=./s.sh man ls", "s.sh"),
    ("LESSOPEN='|./s.sh %s' less x", "s.sh"),
    ("MANPAGER=./s.sh man ls", "s.sh"),
    ("tar -cf x.tar --use-compress-program=./s.sh d", "s.sh"),
    ("tar -xf x.tar --to-command=./s.sh", "s.sh"),
    ("tar -cf x.tar --checkpoint=1 --checkpoint-action=exec='sh s.sh' d", "s.sh"),
    ("rsync -e ./s.sh a h:b", "s.sh"),
    ("ssh -o ProxyCommand=./s.sh h", "s.sh"),
    ("split --filter='sh s.sh' x", "s.sh"),
    ("sort --compress-program=./s.sh x", "s.sh"),
    ("vim -c '!sh s.sh' x", "s.sh"),
    ("vim -S v.vim", "v.vim"),
    ("emacs --batch -l e.el", "e.el"),
    ("gdb -x g.gdb ls", "g.gdb"),
    ("gcc -wrapper ./s.sh,x y.c", "s.sh"),
    ("gcc main.c", "main.c"),
    ("gcc main.c -Iinc", "inc/a.h"),
    ("gcc -specs=sp main.c", "sp"),
    ("cargo run", "src/main.rs"),
    ("go run .", "main.go"),
    ("cmake -P c.cmake", "c.cmake"),
    ("pytest -p plug", "plug.py"),
    ("pytest tests", "tests/test_a.py"),
    ("python3 -m pytest", "tests/test_a.py"),
    ("python3 -m unittest", "test_a.py"),
    ("python3 -m http.server --cgi", "cgi-bin/x.py"),
    ("ipython s.ipy", "s.ipy"),
    ("jupyter execute n.ipynb", "n.ipynb"),
    ("papermill n.ipynb out.ipynb", "n.ipynb"),
    ("streamlit run app.py", "pages/p.py"),
    ("flask run", "app.py"),
    ("uvicorn app:main", "app.py"),
    ("gunicorn -c g.py app", "g.py"),
    ("celery -A proj worker", "proj.py"),
    ("alembic upgrade head", "versions/a.py"),
    ("python3 manage.py migrate", "app/migrations/a.py"),
    ("nextflow run main.nf", "modules/a.nf"),
    ("snakemake", "rules/a.smk"),
    ("dvc repro", "dvc.yaml"),
    ("pre-commit run", ".pre-commit-config.yaml"),
    ("docker build .", "Dockerfile"),
    ("docker compose up", "compose.yaml"),
    ("ansible-playbook p.yml", "roles/r/tasks/main.yml"),
    ("terraform apply", "main.tf"),
    ("npm run build", "build.js"),
    ("npm test", "package.json"),
    ("npx jest", "a.test.js"),
    ("yarn build", "webpack.config.js"),
    ("pip install -e .", "setup.py"),
    ("pip install .", "pyproject.toml"),
    ("pip install -r requirements.txt", "requirements.txt"),
    ("poetry run x", "pyproject.toml"),
    ("rake", "Rakefile"),
    ("bundle exec x", "Gemfile"),
    ("gradle build", "build.gradle"),
    ("mvn test", "src/test/A.java"),
    ("sqlite3 :memory: < q.sql", "q.sql"),
    ("sqlite3 -init q.sql x.db .tables", "q.sql"),
    ("psql -f q.sql", "q.sql"),
    ("duckdb < q.sql", "q.sql"),
    ("gnuplot p.gp", "p.gp"),
    ("octave m.m", "m.m"),
    ("matlab -batch run", "run.m"),
    ("sage s.sage", "s.sage"),
    ("julia --project=. -e 'using Foo'", "src/Foo.jl"),
    ("R CMD BATCH a.R", "a.R"),
    ("R -f a.R", "a.R"),
    ("Rscript -e 'source(\"a.R\")'", "a.R"),
    ("Rscript -e 'rmarkdown::render(\"a.Rmd\")'", "a.Rmd"),
    ("quarto render a.qmd", "a.qmd"),
    ("latexmk -r rc.pl a.tex", "rc.pl"),
    ("tclsh t.tcl", "t.tcl"),
    ("expect e.exp", "e.exp"),
    ("screen -c s.rc", "s.rc"),
    ("tmux -f t.conf new", "t.conf"),
    ("tmux new 'sh s.sh'", "s.sh"),
    ("jq -L lib 'import \"m\" as m; .' x.json", "lib/m.jq"),
    ("dc -f d.dc", "d.dc"),
    ("bc b.bc", "b.bc"),
    ("m4 m.m4", "m.m4"),
    ("at now -f s.sh", "s.sh"),
    ("crontab c", "c"),
    ("su -c 'sh s.sh'", "s.sh"),
    ("ld.so ./prog", "prog"),
    ("/lib64/ld-linux-x86-64.so.2 ./prog", "prog"),
    ("java -cp . Main", "Main.class"),
    ("java -jar a.jar", "a.jar"),
    ("mono a.exe", "a.exe"),
    ("wine a.exe", "a.exe"),
    ("cat s.txt | sh", "s.txt"),
    ("sh < s.txt", "s.txt"),
    ("sh <(cat s.txt)", "s.txt"),
    ("base64 -d s.b64 | sh", "s.b64"),
    ("gunzip -c s.gz | sh", "s.gz"),
    ("tail -n +1 *.txt | sh", "s.txt"),
    ("grep -h . *.txt | bash -s", "s.txt"),
    ('sh -c "$(cat s.txt)"', "s.txt"),
    ('eval "$(cat s.txt)"', "s.txt"),
    ("source <(cat s.txt)", "s.txt"),
    ("$(cat s.txt)", "s.txt"),
    ("X=$(cat s.txt); $X", "s.txt"),
    ("ls | sh", "s.txt"),
    ("python3 - < s.txt", "s.txt"),
    ("cat s.txt | python3", "s.txt"),
    ("cat s.txt | python3 -", "s.txt"),
    ('python3 -c "$(cat s.txt)"', "s.txt"),
    ('perl -e "$(cat s.txt)"', "s.txt"),
    ("cat s.txt | sudo -u x bash", "s.txt"),
    ("cat s.txt | tee x | sh", "s.txt"),
    ("dd if=s.txt | sh", "s.txt"),
    ("cp s.txt $TMPDIR/s && sh $TMPDIR/s", "s.txt"),
    ("cp s.txt x.sh && sh x.sh", "s.txt"),
    ("install -m 755 s.txt x && ./x", "s.txt"),
    ("chmod +x s.txt && ./s.txt", "s.txt"),
    ("trap 'sh s.txt' EXIT", "s.txt"),
    ("PROMPT_COMMAND='. ./s.txt' bash -i", "s.txt"),
    ("coproc sh s.txt", "s.txt"),
    ("exec 3< s.txt; sh <&3", "s.txt"),
    ("enable -f ./p.so p", "p.so"),
    ("complete -C ./s.sh x", "s.sh"),
)  # fmt: skip - one row for each


def cases() -> Iterator[Case]:
    """Yield all cases, each once."""
    seen = set()
    for case in _all_cases():
        if (case.command, case.target) not in seen:
            seen.add((case.command, case.target))
            yield case


def _all_cases() -> Iterator[Case]:
    for number, (run, ending, code) in enumerate(_INTERPRETERS):
        # Code that has the name of code, of data, or none at all; in the workspace or in a folder.
        for file in (f"x.{ending}", "x.txt", "x", f"d/y.{ending}"):
            stem, _, last = file.rpartition("/")[2].partition(".")
            stem = file.removesuffix(f".{last}") if last else file
            names = {
                "run": run,
                "file": file,
                "stem": stem,
                "ending": last or "x",
                "glob": file.replace(stem.rpartition("/")[2], "?"),
            }
            files = {"list": f"{file}\n", "d/keep.txt": "", file: code}
            for place, naming in enumerate(_NAMINGS):
                if not last and "{ending}" in naming:
                    continue
                command = naming.format(**names)
                wrapper = _WRAPPERS[(number * 7 + place * 3 + len(file)) % len(_WRAPPERS)]
                for form in {"{}", wrapper}:
                    if form == "{}" or (form.count("'") == 0 or "'" not in command):
                        yield Case(command=form.format(command), files=files, target=file)
    for wrapper in _WRAPPERS:
        for run, ending, code in _INTERPRETERS[:8]:
            file = f"x.{ending}"
            yield Case(command=wrapper.format(f"{run} {file}"), files={file: code}, target=file)
    for command, (script, texts) in _RUNNERS.items():
        for text in texts:
            for file in ("z.sh", "z.txt", "z.py", "z"):
                stem, _, ending = file.partition(".")
                content = text.format(file=file, stem=stem, ending=ending or "x")
                files = {"list": f"{file}\n", script: content, file: ":"}
                is_computed = "{stem}" in text and "{ending}" not in text and ending == "txt"
                finds_none = "{ending}" in text and not ending
                if not is_computed and not finds_none:
                    yield Case(
                        command=command.replace("{{", "{").replace("}}", "}"), files=files, target=file
                    )
    for command, target in _SETTINGS:
        for changed in {"{}", "env {}", "cd . && {}"} if command[0].islower() else {"{}", "cd . && {}"}:
            yield Case(command=changed.format(command), files={"list": target, target: ":"}, target=target)
