"""Programs that show documents, pictures and sound, and what is known of them.

Many of them write a file of their own unless they are to print, and some take a URL for a file.
"""

from __future__ import annotations

import re

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, name_set, without_beginning
from aisotools.policy.shell.options import (
    Classifier,
    CommandSpec,
    Words,
    by_program,
    option_verdict,
    parse_options,
    role_verdict,
)
from aisotools.policy.shell.subcommands import Subcommand, subcommands
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    UNKNOWN_WORDS,
    CommandVerdict,
    contacts,
    host_of,
    merge,
    reads,
    reads_or_contacts,
    uncertain,
)

# ---- pagers: without a terminal, which a command of a model never has, they print and take no commands

_LESS = (
    "-aAeEfFgGiIJmMnNqQRrsSuUVwWXcCdK~ -b: -h: -j: -p: -P: -x: -y: -z: -# -o:w -O:w -k:u -t:u -T:u -D: "
    "--LINE-NUMBERS --line-numbers --chop-long-lines --RAW-CONTROL-CHARS --raw-control-chars "
    "--quit-if-one-screen --no-init --ignore-case --IGNORE-CASE --squeeze-blank-lines --pattern: --tabs: "
    "--force --quit-at-eof --QUIT-AT-EOF --mouse --use-color --header: --log-file:w --LOG-FILE:w "
    "--lesskey-file:u --lesskey-src:u --lesskey-content:u --tag:u --tag-file:u --follow-name --incsearch "
    "--no-keypad --tilde --hilite-search --wordwrap"
)
_LESS_COMMAND = re.compile(r"\+\+?(?:[0-9]*[GgFp%]?|/[^\n]*)")
_BAT = (
    "-ApnfuPSg -l: -H: -m: -r: --show-all --plain --language: --highlight-line: --file-name: --diff "
    "--diff-context: --tabs: --wrap: --terminal-width: --number --color: --italic-text: --decorations: "
    "--force-colorization --paging: --pager:x --map-syntax: --ignored-suffix: --theme: --list-themes "
    "--style: --line-range: --list-languages --unbuffered --nonprintable-notation: --chop-long-lines "
    "--squeeze-blank --squeeze-limit: --no-config --no-paging --binary: --theme-light: --theme-dark: "
    "--strip-ansi: --set-terminal-title"
)
_MAN = (
    "-afkKIiwW7DdhuV -C:u -R: -L: -m: -M:p -S: -s: -e: -P:x -r: -E: -p: -l!r -t!u -T?u -X?u -Z!u -H?x --all "
    "--whatis --apropos --where --path --where-cat --locale: --systems: --manpath:p --sections: "
    "--extension: --ignore-case --match-case --regex --wildcard --names-only --pager:x --prompt: "
    "--encoding: --no-hyphenation --no-justification --html?x --warnings? --global-apropos --local-file!r "
    "--config-file:u --update!c"
)


def _classify_less(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _LESS)
    commands = [word for word in parsed.operands if word.prefix.startswith("+")]
    verdicts = [
        NO_EFFECT
        if word.text is not None and _LESS_COMMAND.fullmatch(word.text)
        else uncertain(f"{words[0].display} may run {word.display}")
        for word in commands
    ]
    files = [word for word in parsed.operands if not word.prefix.startswith("+")]
    return merge([option_verdict(parsed), *verdicts, *map(reads, files)])


def _classify_bat(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _BAT)
    if parsed.operands and parsed.operands[0].text == "cache":
        return uncertain("bat cache changes its themes and languages")
    return merge([option_verdict(parsed), *map(reads, parsed.operands)])


def _classify_man(words: Words) -> CommandVerdict:
    """Return the verdict on man, for which an operand with a slash is a file, which may include others."""
    parsed = parse_options(words, _MAN)
    files = [word for word in parsed.operands if word.text is None or "/" in word.text]
    files += parsed.operands if parsed.has("-l", "--local-file") else []
    return merge([option_verdict(parsed), *(role_verdict("L", word, "") for word in files)])


# ---- documents


def _prints_to(standard_output: str, options: str, *, one_dash: bool = False) -> Classifier:
    """Return a classifier for programs that write a file unless the second operand is `standard_output`."""

    def classify(words: Words) -> CommandVerdict:
        parsed = parse_options(words, options, one_dash=one_dash)
        verdicts = [option_verdict(parsed), *(role_verdict("i", word, "") for word in parsed.operands[:1])]
        targets = parsed.operands[1:]
        if parsed.operands and [target.text for target in targets] != [standard_output]:
            verdicts.append(
                uncertain(f"{words[0].display} writes a file")
                if not targets
                else role_verdict("w", targets[0], "")
            )
        return merge(verdicts)

    return classify


_PANDOC = (
    "-spNi -f: -r: -t: -w: -o:w -V: -M: -H:i -B:i -A:i -c: -T: --from: --read: --to: --write: --output:w "
    "--standalone --wrap: --columns: --toc --table-of-contents --toc-depth: --number-sections --metadata: "
    "--variable: --shift-heading-level-by: --markdown-headings: --reference-links --ascii --strip-comments "
    "--no-highlight --tab-stop: --preserve-tabs --eol: --quiet --verbose --trace --sandbox "
    "--list-input-formats --list-output-formats --list-extensions? --list-highlight-languages --atx-headers "
    "--template:i --csl:i --bibliography:i -C --citeproc --extract-media:w --filter:x --lua-filter:x -F:x "
    "-L:x --pdf-engine:x --self-contained!n --embed-resources!n --data-dir:u --defaults:u -d:u --mathjax? "
    "--katex? --track-changes:"
)
_PANDOC_FILES = re.compile(r"(?:bibliography|csl|citation-abbreviations)[=:]")
_PANDOC_PRINTS = re.compile(
    r"(?:plain|markdown\w*|gfm|commonmark\w*|html[45]?|json|rst|latex|native|org|asciidoc|mediawiki|man|csv|jats"
    r"|docbook)(?:[+-]\w+)*"
)


# What these compute they note beside the file, in FILE.aux.xml.
_GDAL = (
    "-al -so -q -ro -where: -json -stats!c -approx_stats!c "
    "-mm -hist!c -nomd -noct -checksum -proj4 -nogcp -geom?"
)
_GDAL_LOCAL = re.compile(r"/vsi(?:zip|gzip|tar|7z|rar)/(?!.*vsi)(?!.*:)", re.DOTALL)


_GDAL_TABLES = {
    "gdallocationinfo": "-xml -lifonly -valonly -b: -overview: -l_srs: -geoloc -wgs84 -E -field_sep:",
    "gdalsrsinfo": "-o: -e -single_line",
    "gdaltransform": "-i -s_srs: -t_srs: -ct: -order: -tps -rpc -geoloc -output_xy -E -field_sep:",
}
_REFERENCE_SYSTEM = re.compile(r"(?:EPSG|ESRI|IAU|OGC|CRS):\w+", re.IGNORECASE)


def _classify_gdal(words: Words) -> CommandVerdict:
    """Return the verdict on programs of GDAL: a path may name a file system of theirs, or a service."""
    parsed = parse_options(words, _GDAL_TABLES.get(words[0].text or "", _GDAL), one_dash=True)
    verdicts = [option_verdict(parsed, program=words[0].display)]
    systems = (o.value for o in parsed.options if o.name.endswith("_srs") and o.value is not None)
    verdicts += [reads(word) for word in systems if not _REFERENCE_SYSTEM.fullmatch(word.text or "")]
    for word in parsed.operands:
        if _REFERENCE_SYSTEM.fullmatch(word.text or ""):
            continue
        verdicts.append(reads_or_contacts(word))
        url = host_of(word.display.rpartition("/vsi")[2].partition("/")[2])
        if "/vsi" in word.display and not _GDAL_LOCAL.match(word.display):
            verdicts.append(contacts(url, f"it contacts {word.display}"))
        elif word.text is None and not word.is_located:
            verdicts.append(uncertain(f"it cannot be determined whether {word.display} is a file here"))
    return merge(verdicts)


def _classify_pdfimages(words: Words) -> CommandVerdict:
    """Return the verdict on pdfimages, which writes a file for each picture unless it lists them."""
    parsed = parse_options(words, "-f: -l: -list -p -q -opw: -upw: -print-filenames", one_dash=True)
    if not parsed.has("-list") or len(parsed.operands) > 1:
        return uncertain("pdfimages writes files")
    return merge([option_verdict(parsed), *map(reads, parsed.operands)])


def _classify_qpdf(words: Words) -> CommandVerdict:
    """Return the verdict on qpdf, which with one path and such an option shows what is in a file."""
    parsed = parse_options(words, _QPDF)
    if len(parsed.operands) != 1 or not parsed.options or parsed.operands[0].display.startswith("@"):
        return uncertain("qpdf writes files")
    return merge([option_verdict(parsed), *map(reads, parsed.operands)])


_QPDF = (
    "--check --check-linearization --is-encrypted --requires-password --show-encryption --show-npages "
    "--show-pages --with-images --show-xref --show-linearization --show-object: --raw-stream-data "
    "--filtered-stream-data --list-attachments --show-attachment: --show-encryption-key --password: --verbose"
)


def _classify_pandoc(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _PANDOC)
    if any(word.text in {"lua", "server"} for word in words[1:2]):
        return uncertain("pandoc runs code, or a server")
    target = parsed.value("-t", "-w", "--to", "--write")
    source = parsed.value("-f", "-r", "--from", "--read")
    verdicts = [option_verdict(parsed), *(role_verdict("i", word, "") for word in parsed.operands)]
    if not parsed.has("--sandbox"):  # formats such as LaTeX, RST and Org include other files
        verdicts.append(CommandVerdict(unresolved=(UNKNOWN_WORDS,)))
    verdicts += [
        role_verdict("i", without_beginning(value, found.end()), "")
        for option in parsed.options
        if option.name in {"-M", "--metadata"}
        and (value := option.value) is not None
        and (found := _PANDOC_FILES.match(value.prefix))
    ]
    if parsed.has("-o", "--output"):
        verdicts.append(uncertain("pandoc may run a program to make that"))
    prints = target is None or _PANDOC_PRINTS.fullmatch(target.text or "")
    if not prints or (source is not None and (source.text is None or ".lua" in source.text)):
        verdicts.append(uncertain("what pandoc does for this format is unknown"))
    return merge(verdicts)


_EXIFTOOL_TAG = re.compile(r"-(?:[A-Za-z0-9_]+:)*[A-Za-z][A-Za-z0-9_?*-]*#?")
_EXIFTOOL_FLAGS = name_set(
    "-s -S -s2 -s3 -G -G0 -G1 -G2 -g -g0 -g1 -g2 -a -u -U -e -ee -ee2 -ee3 -n -json -j -csv -t -T -tab "
    "-table -X -xmlFormat -b -binary -c -v -v0 -v1 -v2 -v3 -q -m -r -recurse -fast -fast2 -l -long -H -D -f "
    "-z -sort -scanForXMP -struct -L -h -htmlDump -php -args -list -listf -listx -listw -ver -E -EX -i "
    "-progress -common -all"
)
_EXIFTOOL_VALUES = frozenset(
    ("-d", "-dateFormat", "-ext", "-extension", "-x", "-lang", "-charset", "-sep", "-fileOrder", "-i")
)
# Prefixes of options that write, run Perl or read more options. exiftool ignores case in some of them.
_EXIFTOOL_MORE = re.compile(
    r"-(?:@|if\d*|p|printformat|textout.*|o|out|overwrite.*|delete.*|restore.*|config|execute.*|stay_open"
    r"|tagsfromfile.*|addtagsfromfile|geotag|geosync|geotime|globaltimeshift|use|userparam|api|file\d.*|srcfile"
    r"|efile.*|diff|tagout.*|w.*|"
    r"common_args|p-|password|echo\d?|listitem|plot)",
    re.IGNORECASE,
)


def _classify_exiftool(words: Words) -> CommandVerdict:
    verdicts = []
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if not word.prefix.startswith("-"):
            doubt = word.may_be_option and not word.is_located
            verdicts.append(uncertain(f"{word.display} may be an option") if doubt else reads(word))
        elif word.text in _EXIFTOOL_VALUES:
            if rest and rest.pop(0).may_split:
                verdicts.append(uncertain("how many words an option has is unknown"))
        elif word.text in _EXIFTOOL_FLAGS or word.text == "--":
            continue
        elif (
            word.text is None or not _EXIFTOOL_TAG.fullmatch(word.text) or _EXIFTOOL_MORE.fullmatch(word.text)
        ):
            verdicts.append(uncertain(f"exiftool may write or run something with {word.display}"))
    return merge(verdicts)


_PLAYLIST = re.compile(r"\.(?:m3u8?|pls)$", re.IGNORECASE)


def _classify_soxi(words: Words) -> CommandVerdict:
    """Return the verdict on soxi, which runs a name that begins with a bar, and knows lists and addresses."""
    parsed = parse_options(words, "-trcsdDbBpeaTV", allow_patterns=True)
    verdicts = [option_verdict(parsed)]
    for word in parsed.operands:
        if word.prefix.startswith("|") or _PLAYLIST.search(word.display):
            verdicts.append(uncertain(f"soxi may run {word.display}"))
        elif word.text is None and not (
            word.prefix.strip() or word.is_name or word.is_located or word.is_file
        ):
            verdicts.append(uncertain(f"{word.display} may be an option, or a command that soxi runs"))
        else:
            verdicts.append(reads_or_contacts(word))
    return merge(verdicts)


def _classify_sox(words: Words) -> CommandVerdict:
    if len(words) > 1 and words[1].text in {"--i", "--info"}:
        return _classify_soxi(words[1:])
    return uncertain("sox writes files, and runs commands in their names")


_IMAGE = re.compile(r"[\w./\[\] *-]*")
# Other names choose what is in the file: MSL is a program, and for PDF and SVG other programs are run.
_PICTURE = re.compile(
    r".*\.(?:png|jpe?g|gif|tiff?|bmp|webp|hei[cf]|avif|ico|p[pgbn]m|psd|exr|hdr|jp2|tga|dcm|cr2|nef|dng|xcf)"
    r"(?:\[[^\]]*\])?",
    re.IGNORECASE | re.DOTALL,
)
_IDENTIFY = (
    "-format: -verbose -ping -quiet -regard-warnings -units: -channel: -depth: -density: -features: "
    "-moments -unique -colorspace: -alpha: -strip -monitor -precision: -size: -define:u -write:w -debug:u "
    "-list: -version -help -crop: -auto-orient"
)


def _classify_identify(words: Words) -> CommandVerdict:
    """Return the verdict on ImageMagick's identify, for which a name can be a command, a URL or a list."""
    parsed = parse_options(words, _IDENTIFY, one_dash=True, allow_dynamic=True)
    verdicts = [option_verdict(parsed)]
    for word in parsed.operands:
        is_plain = word.is_file or (word.is_located and _IMAGE.fullmatch(word.display)) or _is_path(word)
        is_plain = is_plain and (word.text is None or _PICTURE.fullmatch(word.text) is not None)
        verdicts.append(reads(word) if is_plain else uncertain(f"ImageMagick may run {word.display}"))
    return merge(verdicts)


def _is_path(word: Word) -> bool:
    return "/" in word.prefix and _IMAGE.fullmatch(word.prefix) is not None


_FFPROBE = (
    "-v: -loglevel: -hide_banner -show_entries: -show_format -show_streams -show_frames -show_packets "
    "-show_chapters -show_programs -show_error -show_data -show_library_versions -show_versions "
    "-show_program_version -of: -print_format: -output_format: -pretty -unit -prefix -byte_binary_prefix "
    "-sexagesimal -select_streams: -count_frames -count_packets -read_intervals: -show_private_data -i:i "
    "-f:u -protocol_whitelist:u -report!w -o:w -sections -bitexact -show_optional_fields: -analyze_frames "
    "-version -formats -codecs -decoders -encoders -pix_fmts -layouts -h -help -L -noprivate -skip_frame: "
    "-threads: -probesize: -analyzeduration:"
)
_FFMPEG_SHOWS = (
    "-hide_banner -v: -loglevel: -version -buildconf -formats -muxers -demuxers -devices -codecs "
    "-decoders -encoders "
    "-bsfs -protocols -filters -pix_fmts -layouts -sample_fmts -dispositions -colors -hwaccels -h? -help? -L"
)


def _classify_ffmpeg(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _FFMPEG_SHOWS, one_dash=True)
    shows = not parsed.doubts and all(
        option.name not in {"-h", "-help"} or len(words) == 2 for option in parsed.options
    )
    only_lists = shows and all((word.text or "").isalpha() for word in parsed.operands) and len(words) > 1
    return (
        NO_EFFECT if only_lists and not parsed.operands else uncertain("ffmpeg writes what it is to produce")
    )


def _classify_mediainfo(words: Words) -> CommandVerdict:
    """Return the verdict on mediainfo, which takes `file://` and a path for a template that it prints."""
    parsed = parse_options(words, "-f --Full --Output: --Inform: --Language: --Help --Version")
    templates = [
        o.value for o in parsed.options if o.name in {"--Output", "--Inform"} and o.value is not None
    ]
    verdicts = [
        reads(without_beginning(value, len("file://")))
        if value.prefix.startswith("file://")
        else NO_EFFECT
        if value.text is not None and "file:" not in value.text
        else uncertain(f"it cannot be determined what {value.display} is to mediainfo")
        for value in templates
    ]
    operands = (role_verdict("i", word, "") for word in parsed.operands)
    return merge([option_verdict(parsed), *verdicts, *operands])


COMMANDS = (
    CommandSpec(names="less", classify=_classify_less, info_arguments="--help --version -V -?"),
    CommandSpec(
        names="more",
        options="-dflcpsu -n: -# --silent --logical --no-pause --print-over --clean-print --squeeze "
        "--plain --lines:",
    ),
    CommandSpec(names="bat batcat", classify=_classify_bat, info_arguments="--help --version -h -V"),
    CommandSpec(names="man", classify=_classify_man),
    CommandSpec(
        names="apropos whatis",
        options="-dverwalk -s: -m: -M:p -L: -C:u --exact --regex --wildcard --and --sections: --long",
        operands=".",
    ),
    CommandSpec(
        names="pdftotext",
        classify=_prints_to(
            "-",
            "-f: -l: -r: -x: -y: -W: -H: -layout -fixed: -raw -nodiag -htmlmeta -tsv -enc: -eol: "
            "-nopgbrk -bbox -bbox-layout -cropbox -colspacing: -opw: -upw: -q -listenc",
            one_dash=True,
        ),
        info_arguments="-v -h -help --help --version -listenc",
    ),
    CommandSpec(
        names="pdfinfo pdffonts",
        options="-f: -l: -box -meta -custom -js -struct -isodates -rawdates -dests -url -enc: -listenc "
        "-opw: -upw: -subst -locSubset",
        one_dash=True,
        operands="i",
        info_arguments="-v -h -help --help --version",
    ),
    CommandSpec(names="docx2txt docx2txt.pl", classify=_prints_to("-", "")),
    CommandSpec(
        names="antiword catdoc catppt xls2csv",
        classify=by_program(
            {
                "antiword": "-fhrstL -a:u -p:u -i: -m:r -w: -x:",
                "catdoc": "-abltuwx8vV -d: -f: -m: -s:",
                "catppt": "-lV -b: -d: -s:",
                "xls2csv": "-xlV -b: -c: -d: -f: -g: -q: -s:",
            }
        ),
    ),
    CommandSpec(
        names="xlsx2csv",
        options="-imeE -a!u -d: -s: -n: -f: -x: -l: -q: -p: --dateformat: --timeformat: --delimiter: "
        "--sheet: --sheetname: --ignoreempty --floatformat: --sci-float --escape --hyperlinks",
        operands="rw",
    ),
    CommandSpec(names="pandoc", classify=_classify_pandoc, info_arguments="--help --version -h -v"),
    CommandSpec(
        names="texcount detex",
        options="-v0123456 -inc -sum -brief -total -q -1 -merge -l -n -w -sub",
        one_dash=True,
        operands="L",  # they follow what `\\input` names
    ),
    CommandSpec(
        names="aspell",
        classify=subcommands(
            Subcommand(
                names="list, -l, dicts, dump dicts, dump modes, munch, expand, soundslike, config",
                options="--lang: --mode: -d:r --master:r --encoding: -H -t -e --ignore-case --ignore:",
            ),
            options="-d:r -H --lang: --mode: --encoding:",
            reason="changes the file that it checks",
        ),
        info_arguments="--help --version -v",
    ),
    CommandSpec(names="exiftool", classify=_classify_exiftool, info_arguments="-ver -h -list -listf"),
    CommandSpec(names="identify", classify=_classify_identify, info_arguments="-version --version -help"),
    CommandSpec(
        names="convert magick mogrify montage compare composite import animate display",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        reason="writes pictures",
        certain=False,
        info_arguments="-version --version -help",
    ),
    CommandSpec(
        names="ffprobe",
        options=_FFPROBE,
        one_dash=True,
        operands="i",
        info_arguments="-version -h -help -L -formats -codecs",
    ),
    CommandSpec(names="ffmpeg", classify=_classify_ffmpeg, info_arguments="-version -h -help -L"),
    CommandSpec(
        names="mediainfo",
        options="-f --Full --Language: --Help --Version --Output: --Inform:",
        classify=_classify_mediainfo,
        info_arguments="--help --version -h --Version --Help",
    ),
    CommandSpec(names="soxi", classify=_classify_soxi),
    CommandSpec(names="sox", classify=_classify_sox, info_arguments="--version --help -h"),
    CommandSpec(
        names="pdfgrep",
        options="-niHhcoPFlLqZpru -e: -A: -B: -C: -m: --ignore-case --page-number --with-filename --count "
        "--only-matching --perl-regexp --fixed-strings --quiet --recursive --color: --max-count: --context: "
        "--after-context: --before-context: --page-range: --include: --exclude: --files-with-matches",
        operands="pr",
        searches="-r --recursive",
    ),
    CommandSpec(
        names="cdo",
        classify=subcommands(
            Subcommand(
                names="sinfo, sinfon, sinfoc, info, infon, infoc, showname, showvar, showcode, showdate, "
                "showtime, showyear, showmon, showlevel, showstdname, showunit, showformat, showtimestamp, "
                "ntime, nlevel, nvar, nyear, nmon, ndate, npar, griddes, zaxisdes, vlist, pardes, vardes",
                operands="i",
            ),
            options="-s --silent",
            reason="writes files",
            helps="--version --help -h -V",
        ),
    ),
    CommandSpec(
        names="jpeginfo pngcheck webpinfo tiffinfo tiffdump opusinfo ogginfo",
        options="-clvqisDrn",
        operands="r",
        allow_patterns=True,
    ),
    CommandSpec(names="gdalinfo ogrinfo gdallocationinfo gdalsrsinfo gdaltransform", classify=_classify_gdal),
    CommandSpec(names="pdfimages", classify=_classify_pdfimages, info_arguments="-v -h -help --help"),
    CommandSpec(names="qpdf", classify=_classify_qpdf),
)
