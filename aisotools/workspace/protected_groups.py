"""The list of protected names, by the programs that run or obey them.

The criterion, and how the names are compared, stand in `aisotools.workspace.protected_names`. A `*`
stands for any characters. Two forms of a name need no place here, since they follow from it: the folder form
of a module (`tasks/__init__.py`), and what GNU make would make a file of (`Makefile.sh`,
`.cargo/config.toml.sh`). What decided about the names that are not here:

- a Dockerfile: its commands run in a container, which holds only what the build was given. A compose file is
  here, since it may give a container any folder of the host, and all rights;
- lists of dependencies alone (`requirements.txt`, `environment.yml`, `go.mod`, lock files): what they list
  runs when a person installs it, which is what they asked for. A manifest that can name commands is here;
- the source of a program (`manage.py`, `main.tf`, `BUILD`, `BUCK`, `test_x.py`, libraries in `node_modules`),
  and what a build wrote from it (`target`, `dist`): running them is what the person asks for;
- the programs of an environment (`.venv/bin`, `node_modules/.bin`), which run the modules beside them: what
  installs something writes both, and many are too large to be copied and put back. README says so;
- text for models (`AGENTS.md`, `CLAUDE.md`, `.cursorrules`): no program executes it;
- settings that run nothing and load nothing (`ruff.toml`, `.editorconfig`, `.clang-format`, `.nvmrc`);
- names that ordinary files and folders have as well (`project.json`, `box.json`, `pipeline.yaml`,
  `workspace.yaml`; `BUILD`, `WORKSPACE`, `DEPS`, Go's `tools.go`, `config.toml`): refusing them would refuse
  ordinary work. For the same reason `tools/bazel` and its like are protected in their folder only. The hooks
  of a Subversion server (`hooks/pre-commit`) have the names of scripts that projects keep for git, and run
  only where the server's repository lies in there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProtectedGroup:
    """Files that the same kind of program runs or obeys.

    Attributes:
        programs: The programs.
        reason: What these programs do with the files.
        names: Names of files in any folder, in lower case; `*` stands for any characters.
        folders: Folders that hold such files under any name, wherever they are.
        paths: Files that are protected in one folder only, wherever that folder is.
    """

    programs: str
    reason: str
    names: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


def _group(
    programs: str, reason: str, *, names: str = "", folders: str = "", paths: str = ""
) -> ProtectedGroup:
    return ProtectedGroup(
        programs, reason, tuple(names.split()), tuple(folders.split()), tuple(paths.split())
    )


PROTECTED_GROUPS = (
    _group(
        "Any program",
        "settings by the convention of a hidden name that ends in rc, and hidden files of code, load modules",
        names="""
            .*rc .mocharc.* .*rc.js .*rc.cjs .*rc.mjs .*rc.ts .*rc.cts .*rc.mts .*rc.json .*rc.jsonc
            .*rc.json5 .*rc.yml .*rc.yaml .*rc.toml
            .[a-z]*.js .[a-z]*.cjs .[a-z]*.mjs .[a-z]*.ts .[a-z]*.py .[a-z]*.rb .[a-z]*.php .[a-z]*.exs
            .[a-z]*.lua .[a-z]*.star .[a-z]*.zsh
        """,
    ),
    _group(
        "pytest, tox, nox, coverage and other test runners of Python",
        "load plugins, and import or run what they name",
        names="""
            conftest.py pytest.ini .pytest.ini pytest.toml .pytest.toml tox.ini tox.toml toxfile.py
            noxfile.py setup.cfg unittest.cfg nose.cfg nose2.cfg .testr.* .stestr.* asv.conf.json behave.ini
            locustfile.py locust.conf mutmut_config.py robot.toml molecule.yml
        """,
    ),
    _group(
        "pip, build backends, task runners and the interpreter of Python",
        "run builds and commands, or import at the start",
        names="""
            setup.py pyproject.toml hatch.toml hatch_build.py .pdm-python pdm_build.py poetry.toml pixi.toml
            pipfile uv.toml dodo.py fabfile.py tasks.py pavement.py invoke.yml invoke.yaml invoke.json
            fabric.yml fabric.yaml fabric.json snakefile .bumpversion.* .cz.toml .cz.json .cz.yaml cz.toml
            cz.json cz.yaml .copier-answers.yml copier.yml copier.yaml cookiecutter.json sitecustomize.py
            usercustomize.py *.pth pyvenv.cfg .python-version pdm.toml .pdm.toml buildout.cfg doit.cfg
            pip.conf pip.ini invoke.py anaconda-project.yml conda-project.yml .cruft.json tbump.toml
            bumpver.toml poe_tasks.toml poe_tasks.yaml poe_tasks.json duties.py *.egg *.egg-link
        """,
        folders=".eggs",
        paths="""
            .pixi/config.toml *.egg-info/entry_points.txt *.dist-info/entry_points.txt
            *.egg/egg-info/pkg-info
        """,
    ),
    _group(
        "checkers, language servers, debuggers, documentation and servers of Python",
        "load plugins and modules, and run what they name",
        names="""
            mypy.ini .mypy.ini .flake8 pylintrc pylintrc.toml pylama.ini .pylama.ini conf.py mkdocs.yml
            mkdocs.yaml pelicanconf.py myst.yml _config.yml gunicorn.conf.py luigi.cfg superset_config.py
            zappa_settings.* dvc.yaml guild.yml great_expectations.yml langgraph.json prefect.yaml
            .kedro.yml .prospector.* .pyre_configuration .sqlfluff .pythonstartup publishconf.py
            _quarto.yml celeryconfig.py scrapy.cfg alembic.ini luigi.toml dvcfile mlproject meltano.yml
            _quarto-*.yml _metadata.yml _extension.yml _environment _environment.local _environment-*
            dbt_project.yml profiles.yml dagster_cloud.yaml ploomber.yaml nextflow.config
            nf-test.config .importlinter _config.yaml _config.toml _quarto.yaml _quarto-*.yaml
            _metadata.yaml _extension.yaml pyrefly.toml
        """,
        folders=".jedi .ropeproject profiles/default",
        paths=".dvc/config",
    ),
    _group(
        "Jupyter and IPython",
        "run these settings when they start",
        names="""
            jupyter*_config.py jupyter*_config.json ipython*_config.py nbgrader_config.py matplotlibrc
            voila.json .jupytext jupytext.toml jupytext.yml nbdime_config.json voila.py
            ipython*_config.json nbgrader_config.json
        """,
        folders="""
            .ipython .jupyter profile_default jupyter_server_config.d jupyter_notebook_config.d
            jupyter_config.d
        """,
    ),
    _group(
        "nbconvert, MkDocs, cookiecutter, hygen, Eleventy and others that fill in templates",
        "run the code in templates, and load the modules that settings beside them name",
        names="""
            *.j2 conf.json *.ejs.t *.11ty.js *.11ty.cjs *.11ty.mjs *.11tydata.js *.11tydata.cjs
            *.11tydata.mjs pre_gen_project.* post_gen_project.* pre_prompt.py pre_prompt.sh
        """,
        folders="overrides custom_theme",
        paths="""
            full/full.tpl full/display_priority.tpl classic/full.tpl classic/display_priority.tpl
            base/full.tpl base/display_priority.tpl
        """,
    ),
    _group(
        "make, CMake, Meson, SCons and other builds of C and C++",
        "run the commands that these files hold; GNU make first makes any file of these lists anew of one "
        "with `.sh`, `.c` or the like added, which is protected as well",
        names="""
            makefile gnumakefile makefile.am makefile.in configure.ac configure.in aclocal.m4 kbuild kconfig
            imakefile cmakelists.txt cmakepresets.json cmakeuserpresets.json cmakecache.txt ctest*.cmake
            cpack*.cmake cmake_install.cmake build.ninja meson.build meson.options sconstruct sconscript
            wscript waf jamfile jamroot jamroot.jam boost-build.jam tupfile tupfile.lua conanfile.py
            conanfile.txt conandata.yml xmake.lua .qmake.conf platformio.ini .gn build.gn .gclient *.gyp
            *.gypi android.mk android.bp gtags.conf bsdmakefile acinclude.m4 meson_options.txt sconstruct.py
            wscript_build project-config.jam tuprules.tup vcpkg.json vcpkg-configuration.json premake4.lua
            premake5.lua application.mk *.pro *.qbs
        """,
        folders="site_scons",
        paths=".west/config",
    ),
    _group(
        "just, task, bazel, foreman and other task runners",
        "run the commands that these files hold",
        names="""
            justfile .justfile .just taskfile.yml taskfile.yaml taskfile.dist.yml taskfile.dist.yaml
            bacon.toml .bacon.toml .buckconfig .buckconfig.local *.bazel .plzconfig build.plz skaffold.yaml
            okteto.yml watchfiles.toml sake.yaml makefile.toml procfile procfile.dev maskfile.md earthfile
            tiltfile modd.conf mprocs.yaml moon.yml pants.toml .bazelversion dagger.json devspace.yaml
            garden.yml .foreman shakefile.hs process-compose.yaml treefmt.toml .treefmt.toml
            .pants.bootstrap foundry.toml okteto.yaml garden.yaml *.garden.yml *.garden.yaml moon.pkl
            moon.yaml
        """,
        folders=".moon",
        paths="tools/bazel",
    ),
    _group(
        "cargo and rust-analyzer",
        "run build scripts, macros and toolchains that these files name",
        names="""
            cargo.toml build.rs rust-toolchain rust-toolchain.toml rust-project.json .rust-project.json
            cross.toml trunk.toml tauri.conf.* xargo.toml rust-analyzer.toml dioxus.toml release.toml
            cargo-generate.toml
        """,
        paths=".cargo/config .cargo/config.toml .config/nextest.toml",
        folders=".cargo-husky/hooks",
    ),
    _group(
        "tools of Go and of Protocol Buffers",
        "load plugins, or run what they name",
        names="""
            .golangci.* .goreleaser.* goreleaser.* magefile.go .air.* buf.*yaml sqlc.yaml sqlc.yml sqlc.json
            wails.json .promu.yml .protolint.yaml
        """,
        folders="magefiles",
    ),
    _group(
        "Maven, Gradle, sbt, Leiningen and other builds for the Java machine",
        "run plugins and commands, or start with these options",
        names="""
            pom.xml mvnw mvnw.cmd *.gradle *.gradle.kts gradle.properties gradlew gradlew.bat
            gradle-wrapper.* *.versions.toml local.properties build.xml ivy.xml ivysettings.xml *.sbt
            .sbtopts build.sc build.mill project.clj profiles.clj deps.edn shadow-cljs.edn tests.edn
            .factorypath buildfile lombok.config build.properties .jvmopts .scalafix.conf .mill-jvm-opts
            bb.edn build.boot .nrepl.edn
        """,
        folders=".mvn buildsrc .bsp .bloop .lsp .externaltoolbuilders",
    ),
    _group(
        "npm, yarn, pnpm, bun and deno",
        "run scripts, hooks and modules that these files name",
        names="""
            package.json pnpmfile.js .pnp.* bunfig.toml .bunfig.toml deno.json deno.jsonc rush.json nx.json
            turbo.json turbo.jsonc package.json5 package.yaml pnpm-workspace.yaml lerna.json
        """,
        folders=".yarn/releases .yarn/plugins .yarn/sdks",
    ),
    _group(
        "bundlers, checkers, test runners and servers of JavaScript",
        "load these files as code, or modules and commands that they name",
        names="""
            *.config.js *.config.cjs *.config.mjs *.config.ts *.config.cts *.config.mts *.config.json
            *.conf.js *.conf.cjs *.conf.mjs *.conf.ts *.workspace.js *.workspace.ts webpack.*.js
            tsconfig.json tsconfig.*.json jsconfig.json angular.json cypress.json nightwatch.json gulpfile.*
            gruntfile.* brocfile.* knexfile.* cakefile mocha.opts nodemon.json .release-it.* schema.prisma
            codegen.ts codegen.yml gatsby-*.js gatsby-*.ts vercel.json wrangler.toml wrangler.json
            wrangler.jsonc firebase.json serverless.* cdk.json electron-builder.* nest-cli.json testem.js
            testem.json jakefile jakefile.* brunch-config.* ember-cli-build.js .ember-cli jasmine.json
            plopfile.* ormconfig.* .markdownlint-cli2.* netlify.toml cdktf.json truffle-config.js truffle.js
            gatsby-*.mjs tslint.json tslint.yaml tslint.yml *.conf.mts *.conf.cts karma.conf.coffee
            *.workspace.mjs *.workspace.cjs *.workspace.mts *.workspace.cts vitest.workspace.json
            vitest.projects.* typedoc.js typedoc.cjs typedoc.mjs typedoc.json typedoc.jsonc
            stryker.conf.json .stryker.conf.json .stryker.config.json dprint.json dprint.jsonc .dprint.json
            .dprint.jsonc testem.cjs testem.mjs testem.yml testem.yaml .testem.json .testem.yml .testem.yaml
            codegen.mts codegen.js codegen.json codegen.yaml .nest-cli.json
        """,
        folders=".vuepress .storybook .vitepress",
        paths=".changeset/config.json support/jasmine.js support/jasmine.mjs support/jasmine.cjs",
    ),
    _group(
        "rake, bundler and other tools of Ruby",
        "run these files, or load what they name",
        names="""
            rakefile rakefile.rb *.rake gemfile gems.rb capfile steepfile appraisals .rspec .standard.yml
            .haml-lint.yml .simplecov .solargraph.yml cucumber.yml *.podspec *.gemspec vagrantfile
            policyfile.rb .kitchen.yml .kitchen.yaml .watchr guardfile thorfile *.thor
            .rubocop.yml .rubocop_todo.yml .erb_lint.yml .yardopts .overcommit.yml brewfile podfile
            dangerfile dangerfile.* berksfile puppetfile .autotest .rspec-local .kitchen.local.yml
            kitchen.yml kitchen.local.yml packwerk.yml .mutant.yml mutant.yml config.ru
        """,
        folders="fastlane _plugins .bundle .chef",
    ),
    _group(
        "composer, phpunit, phpstan and other tools of PHP; web servers",
        "run scripts, or load files that these name",
        names="""
            composer.json .php_cs .php_cs.dist phpunit.xml phpunit.xml.dist phpunit.dist.xml *.neon
            *.neon.dist psalm.xml psalm.xml.dist rector.php phpcs.xml .phpcs.xml phpcs.xml.dist
            .phpcs.xml.dist codeception.yml codeception.dist.yml behat.yml behat.yml.dist
            infection.json5 phinx.yml grumphp.yml grumphp.yml.dist .user.ini php.ini .htaccess web.config
            robofile.php ecs.php phpspec.yml phpbench.json phinx.php captainhook.json castor.php deploy.php
            kahlan-config.php wp-cli.yml wp-cli.local.yml .arcconfig .arclint behat.yaml behat.yaml.dist
            behat.dist.yml behat.dist.yaml behat.php behat.dist.php phinx.yaml phinx.json grumphp.yaml
            grumphp.yaml.dist grumphp.dist.yml grumphp.dist.yaml infection.json.dist
            infection.json5.dist infection.dist.json infection.dist.json5 phpspec.yaml phpspec.yml.dist
            .phpspec.yml phpbench.json.dist phpbench.dist.json
        """,
        folders=".phan",
    ),
    _group(
        "builds and interpreters of Perl, Lua, Lisp, Racket and Prolog",
        "run these files",
        names="""
            makefile.pl build.pl .proverc .busted *.rockspec info.rkt guix.scm manifest.scm easkfile eldev
            dist.ini cpanfile .perldb minil.toml .luacov config.ld *.asd cask eask
        """,
    ),
    _group(
        "builds and interpreters of Haskell, OCaml, Lean and Coq",
        "run these files, or commands that they name",
        names="""
            .ghci .ghcid cabal.project cabal.project.local *.cabal setup.hs setup.lhs dune dune-project
            dune-workspace *.opam .merlin lakefile.lean lakefile.toml _coqproject makefile.coq.local
            stack.yaml hie.yaml .ghc.environment.* .ocamlinit myocamlbuild.ml esy.json lean-toolchain
        """,
    ),
    _group(
        "builds for Elixir, Erlang, Zig, Nim, D, Swift, Dart and .NET",
        "run these files, or commands that they name",
        names="""
            rebar.config rebar.config.script mix.exs config.exs runtime.exs build.zig nim.cfg *.nim.cfg
            *.nims *.nimble dub.json dub.sdl dub.settings.json package.swift project.swift project.pbxproj
            *.xcscheme *.xcconfig pubspec.yaml pubspec_overrides.yaml *.proj *.csproj *.fsproj *.vbproj
            *.*proj *.vcxproj *.wixproj *.csproj.* *.fsproj.* *.vbproj.* *.vcxproj.* directory.*.props
            directory.*.targets directory.*.rsp msbuild.rsp nuget.config global.json dotnet-tools.json
            build.cake build.fsx .erlang shard.yml alire.toml *.gpr .xcode.env .xcode.env.*
            analysis_options.yaml build.yaml melos.yaml build.dart *.sln *.slnx *.sln.* paket.dependencies
        """,
    ),
    _group(
        "R, Julia, Octave, Stata, SAS, ROOT and other interpreters",
        "run these files when they start, or load what they name",
        names="""
            .rprofile .renviron .rdata .octaverc _targets.r _targets.yaml .lintr _bookdown.yml
            _output.yml _site.yml
            .radian_profile *localpreferences.toml project.toml build.jl startup.m finish.m profile.do
            sasv9.cfg rootlogon.c .rootlogon.c .gnuplot activate.r makevars makevars.win juliaproject.toml
            maxima-init.mac maxima-init.lisp autoexec.sas *.rproj rootlogoff.c rootalias.c
        """,
        folders=".julia",
    ),
    _group(
        "shells, direnv, nix, mise and other programs that set an environment",
        "run these files, or set variables by which programs load code",
        names="""
            .env .env.* .flaskenv .envrc .bash_profile .bash_login .bash_logout .bash_aliases .profile
            .zshenv .zprofile .zlogin .zlogout .login .logout .autoenv .tool-versions mise.toml .mise.toml
            mise.*.toml .mise.*.toml .rtx.toml .prototools shell.nix flake.nix default.nix devenv.nix
            .tmuxinator.yml .tmuxp.* .quartenv .envrc.local devbox.json devenv.yaml .xprofile .rbenv-vars
            devenv.local.nix devenv.local.yaml
        """,
        folders=".direnv .ssh .config/mise .mise .gnupg .config/fish mise-tasks .mise-tasks mise/tasks",
        paths="mise/config.toml mise/config.local.toml",
    ),
    _group(
        "editors, language servers and debuggers",
        "run tasks and commands, or load plugins",
        names="""
            .vimrc.local _vimrc _exrc .vimspector.json .projections.json .dir-locals.el .dir-locals-2.el
            .gdbinit .gdbearlyinit .lldbinit *.code-workspace *.sublime-project *.kdev4 .neoconf.json .emacs
            .kateproject .project *-gdb.py *-gdb.gdb *-gdb.scm jdb.ini
        """,
        folders="""
            .vscode .idea .run .zed .helix .vs .theia .fleet .nova .vim .obsidian/plugins .crossnote
        """,
        paths=".obsidian/community-plugins.json",
    ),
    _group(
        "git and other version control",
        "run hooks, or obey settings that name programs",
        names="""
            .gitconfig .pre-commit-config.yaml .pre-commit-config.yml lefthook.* .lefthook.*
            simple-git-hooks.* .simple-git-hooks.* hk.pkl .hgsub .p4config prek.toml lefthook-local.*
            .lefthook-local.* .rusty-hook.toml .gitlint cliff.toml .cliff.toml cog.toml
        """,
        folders=".git/hooks .githooks .husky _darcs/prefs .repo/repo .lefthook .fossil-settings",
        paths="""
            .hg/hgrc .jj/repo/config.toml .jj/workspace-config.toml .sl/config .hg/hgrc-not-shared
            .hg/sharedpath .bzr/branch/branch.conf .pijul/config
        """,
    ),
    _group(
        "services of continuous integration and deployment",
        "run these files at the next push, with the secrets of the repository",
        names="""
            .gitlab-ci.yml .travis.yml .drone.yml .drone.yaml .woodpecker.yml .woodpecker.yaml
            azure-pipelines.yml jenkinsfile jenkinsfile.* bitbucket-pipelines.yml appveyor.yml .appveyor.yml
            .cirrus.yml circle.yml .build.yml bitrise.yml appspec.yml screwdriver.yaml .packit.yaml
            packit.yaml .zuul.yaml zuul.yaml .onedev-buildspec.yml render.yaml nixpacks.toml
            .platform.app.yaml pkgbuild apkbuild .mega-linter.yml .codeclimate.yml .drone.jsonnet
            azure-pipelines*.yaml azure-pipelines-*.yml .azure-pipelines.yml codemagic.yaml buildspec.yml
            buildspec.yaml cloudbuild.yaml cloudbuild.yml cloudbuild.json .evergreen.yml .prow.yaml
            .readthedocs.yaml .readthedocs.yml amplify.yml heroku.yml railway.toml railway.json fly.toml
            snapcraft.yaml atlantis.yaml wercker.yml .taskcluster.yml .vela.yml .vela.yaml
        """,
        folders="""
            .github/workflows .github/actions .github/hooks .gitea/workflows .forgejo/workflows .circleci
            .azure-pipelines .buildkite .builds .harness .zuul.d .trunk .woodpecker .semaphore .teamcity
            .tekton .qlty bamboo-specs
        """,
        paths=".github/copilot-setup-steps.yml debian/rules",
    ),
    _group(
        "compose, development containers, Terraform, Ansible and others that set up machines",
        "run commands, load plugins, or give a container folders of the host",
        names="""
            *compose.yml *compose.yaml compose.*.yml compose.*.yaml docker-compose.*.yml
            docker-compose.*.yaml docker-bake.* .devcontainer.json
            devfile.yaml .devfile.yaml ansible.cfg .ansible.cfg pulumi.*yaml terragrunt.hcl .tflint.hcl
            .gitpod.yml .replit replit.nix ansible-navigator.* .ansible-lint .ansible-lint.yml saltfile
            helmfile.* .checkov.yaml .checkov.yml .lando.yml .lando.*.yml .wp-env.json .wp-env.override.json
        """,
        folders="""
            .ddev .devcontainer .idx .codesandbox helmfile.d .terraform group_vars host_vars action_plugins
            become_plugins cache_plugins callback_plugins cliconf_plugins connection_plugins
            doc_fragments filter_plugins httpapi_plugins inventory_plugins lookup_plugins
            netconf_plugins shell_plugins strategy_plugins terminal_plugins test_plugins vars_plugins
        """,
    ),
    _group(
        "other agents",
        "run hooks and tool servers that these files name",
        names="""
            .mcp.json mcp.json .aider.conf.yml opencode.json crush.json .crush.json .lsp.json opencode.jsonc
            fastagent.config.yaml
        """,
        folders="""
            .claude .claude-plugin .codex .copilot .cursor .gemini .opencode .windsurf .roo .kiro .amazonq
            .qwen .continue .clinerules/hooks .amp .openhands .rovodev .serena .pi .augment .goose .factory
            .agents .warp .junie .kilocode .trae
        """,
        paths=".github/mcp.json",
    ),
    _group(
        "LaTeX, Doxygen and other tools that make documents",
        "run commands that these files name",
        names="""
            latexmkrc doxyfile book.toml llmk.toml build.lua hugo.toml tectonic.toml antora-playbook.yml
            hugo.yaml hugo.json arararc.yaml araraconfig.yaml .araraconfig.yaml
        """,
    ),
    _group("aisotools", "narrows what may run in this workspace", names=".aisotools.toml"),
)
"""All names, in the order in which `%policy protected` shows them."""

EXCEPTIONS = frozenset(
    (
        *(".env.example", ".env.sample", ".env.template", ".env.dist", ".nvmrc"),
        *("proguard-rules.pro", "consumer-rules.pro"),
    )
)
"""Names that a `*` covers, and that make no program run anything: samples to copy, the number of a version,
and rules of ProGuard."""
