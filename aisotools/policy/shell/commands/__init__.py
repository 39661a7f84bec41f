"""Look up the specification of a program by its name or path."""

from __future__ import annotations

from functools import cache

from aisotools.policy.shell.commands import (
    archives,
    biology,
    builtins,
    checkers,
    coreutils,
    documents,
    git,
    interpreters,
    machine,
    mutating,
    network,
    packages,
    scripting,
    services,
    tables,
    transfers,
    wrappers,
)
from aisotools.policy.shell.expansion import name_set, without_beginning
from aisotools.policy.shell.options import (
    CommandSpec,
    Words,
    program_name,
)
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
    merge,
    reads,
    uncertain,
)

COMMANDS: tuple[CommandSpec, ...] = (
    *coreutils.COMMANDS,
    *mutating.COMMANDS,
    *network.COMMANDS,
    *transfers.COMMANDS,
    *git.COMMANDS,
    *scripting.COMMANDS,
    *archives.COMMANDS,
    *documents.COMMANDS,
    *tables.COMMANDS,
    *biology.COMMANDS,
    *packages.COMMANDS,
    *services.COMMANDS,
    *machine.COMMANDS,
    *interpreters.COMMANDS,
    *checkers.COMMANDS,
    *wrappers.COMMANDS,
    *builtins.COMMANDS,
)
"""The specifications of all known programs. No program has two."""

UNSPECIFIED = name_set(
    # of the system
    "split csplit mktemp tempfile logger wall write uudecode zip cpio pax updatedb mandb etags swapoff "
    "umount insmod rmmod adjtimex useradd userdel usermod groupadd groupdel passwd chpasswd visudo vipw "
    "chsh chfn setenforce localedef ssh-copy-id pivot_root renice setcap exportfs sync aptitude zypper "
    "port emerge easy_install "
    # bioinformatics
    "fastqc multiqc STAR hisat2 hisat2-build bowtie bowtie2 bowtie2-build salmon gatk picard cutadapt "
    "fastp trimmomatic trim_galore featureCounts htseq-count stringtie cufflinks tophat mosdepth vep "
    "snpEff snpSift quast quast.py busco prokka bakta kraken2 bracken mafft muscle clustalo iqtree "
    "iqtree2 raxml-ng raxmlHPC fasttree FastTree hmmbuild plink plink2 nf-core infer_experiment.py "
    "deeptools bamCoverage macs2 macs3 spades.py megahit flye canu medaka guppy dorado whatshap sniffles "
    "freebayes varscan bam-readcount umi_tools cellranger sourmash skani diamond mmseqs foldseek prodigal "
    "racon nanoplot NanoPlot porechop pairix filtlong seqfu sambamba vg truvari glnexus nextalign "
    "nextclade pangolin bcl2fastq bcl-convert rsem-calculate-expression gffcompare agat "
    "TransDecoder.LongOrfs interproscan.sh orthofinder trimal rasusa snp-dists snippy fastANI seroba mlst "
    "abricate amrfinder ariba unicycler hifiasm wtdbg2 shovill meryl winnowmap ntcard jellyfish kmc "
    "vsearch usearch exonerate "
    # maps
    "ogr2ogr ogrmerge.py ogr_layer_algebra.py gdal_translate gdalwarp gdalbuildvrt gdaladdo gdaldem "
    "gdal_contour gdal_grid gdal_polygonize.py gdal_rasterize gdal_calc.py gdal_merge.py nearblack pdal "
    "tippecanoe osmium osm2pgsql nco ncra nccopy ncgen h5copy h5repack "
    # data science
    "visidata vd fzf jless fx nbdime nbdiff nbstrip nvtop htop btop ncdu tesseract octave-cli scilab "
    "spark-submit pyspark hadoop dbt tensorboard great_expectations sqlfluff "
    # development
    "nginx apachectl httpd mongod mysqld postgres redis-server delta difft lazygit tig adb dart kotlinc "
    "minikube kind k9s kustomize pulumi buf grpcurl watchman direnv asdf mise volta xgettext msgfmt "
    "msginit cscope doxygen sphinx-build mkdocs hugo objcopy strip ranlib gdbserver lldb-server zig "
    "crystal nim gleam elm stack cabal opam dune coqc agda ld.gold ld.lld lld mold ccache sccache distcc "
    "markdownlint vale actionlint clang-tidy golangci-lint staticcheck rust-analyzer pyright basedpyright "
    "ty autoflake pyupgrade hatch flit rye pip-compile pip-audit safety cookiecutter copier ab wrk siege "
    "hey vegeta google-chrome chromium firefox inkscape gimp blender libreoffice soffice vlc lame oggenc "
    "gs pdftk pdftoppm pdfunite wkhtmltopdf weasyprint asciidoctor rst2html dvipng lilypond graphviz "
    "optipng pngquant jpegtran pipdeptree quarto diffoscope patool git-lfs svn fossil jj glances tcpdump "
    "tshark exiv2 vault consul nomad crane dive trivy qemu-img glow gron dasel htmlq pup octosql usql "
    "litecli pixi virtualenv cd-hit cd-hit-est cwebp ffplay mpv restic borg duplicity rdiff-backup "
    "syncthing unison stow chezmoi"
)
"""Programs without a specification that are known to do nothing but print for `--help` and `--version`."""
_ANSWER_SHORT_QUESTIONS = name_set(
    "fastqc trim_galore busco quast quast.py spades.py salmon featureCounts htseq-count muscle canu "
    "trimmomatic cd-hit cd-hit-est snpEff gatk picard plink plink2 hmmbuild hisat2 bowtie2 STAR cutadapt "
    "stringtie iqtree fastp prodigal nginx lazygit tig blender fzf nim wrk restic delta adb kraken2 mafft "
    "fasttree prokka"
)
"""Those that also answer the short forms, which elsewhere may mean anything, such as to be verbose."""
_QUESTIONS = frozenset(("--help", "--version"))
_SHORT_QUESTIONS = frozenset(("-help", "-version", "-h", "-V", "-v", "version"))

_TAKES_ARGUMENTS_FROM_FILES = name_set(
    "nm size objdump readelf strings ar addr2line c++filt gprof ranlib strip objcopy as ld gcc g++ cc c++ "
    "clang clang++ gfortran llvm-nm llvm-size llvm-objdump "
    "clang-format javac java javap javadoc jar otool rustc protoc tsc swiftc windres elfedit"
)
"""Programs for which `@file` stands for arguments that are in the file."""
_LOADS_PLUGINS = name_set("nm objdump ar llvm-nm llvm-objdump")
"""Of those that only read, the ones that such arguments can make load code."""


@cache
def _specs_by_name() -> dict[str, CommandSpec]:
    return {name: spec for spec in COMMANDS for name in spec.names.split()}


def find_spec(program: str) -> CommandSpec | None:
    """Return the specification of a program, given by name or path, or None if it has none."""
    return _specs_by_name().get(program_name(program))


def classify_response_files(words: Words) -> CommandVerdict:
    """Return the verdict on `@file` among the arguments of a program that reads further arguments there."""
    name = program_name(words[0].text or "")
    if name not in _TAKES_ARGUMENTS_FROM_FILES:
        return NO_EFFECT
    verdicts = []
    for word in words[1:]:
        if word.prefix.startswith("@"):
            verdicts.append(reads(without_beginning(word, 1)))
            verdicts.append(uncertain(f"what {name} does stands in the file {word.display[1:]}"))
        elif word.is_bare_pattern and not word.is_name and name in _LOADS_PLUGINS:
            # Case: a file named `@x` that the pattern matches makes arguments of what is in the file `x`.
            verdicts.append(uncertain(f"{word.display} may be an option"))
    return merge(verdicts)


def is_information_request(words: Words) -> bool:
    """Return whether a command only asks a known program for its help, version or the like.

    The argument must stand alone: with others beside it, many programs do their work regardless.
    """
    if len(words) != 2 or not words[0].text or not words[1].text:
        return False
    spec = find_spec(words[0].text)
    if spec is not None:
        return words[1].text in spec.info_arguments.split()
    name = program_name(words[0].text)
    if words[1].text in _SHORT_QUESTIONS:
        return name in _ANSWER_SHORT_QUESTIONS
    return words[1].text in _QUESTIONS and name in UNSPECIFIED
