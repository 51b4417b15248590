# SPDX-License-Identifier: MIT
# Generates the manual page kvasir(3) from kvasir.h: awk -v version=X -f man3.awk kvasir.h. Names, prototypes and text
# are those of the header; a comment belongs to the declaration after it.

# Escapes roff characters; sets names and text in `...` in bold.
function roff(s,    n, part, i, out) {
    gsub(/\\/, "\\e", s)
    gsub(/-/, "\\-", s)
    n = split(s, part, "`")
    for (i = 1; i <= n; i++)
        if (i % 2 == 0) out = out "\\fB" part[i] "\\fR"
        else {
            gsub(/(kvasir|KVASIR)_[A-Za-z0-9_.]*[A-Za-z0-9_]/, "\\fB&\\fR", part[i])
            out = out part[i]
        }
    return out
}
# Wraps text at `width` characters; indents all lines but the first.
function wrap(s, width, indent,    n, word, i, line, out) {
    n = split(s, word, " ")
    for (i = 1; i <= n; i++)
        if (line != "" && length(line) + length(word[i]) >= width) {
            out = out line "\n"
            line = indent word[i]
        } else line = line (line == "" ? "" : " ") word[i]
    return out line
}
# Wraps text and escapes lines that roff would read as requests.
function lines(s) {
    s = "\n" wrap(roff(s), 78, "") "\n"
    gsub(/\n[.']/, "\n\\\\\\&", s)
    return substr(s, 2)
}
# Formats the text of a comment, whose empty lines are "\n", as paragraphs.
function paragraphs(s, macro,    n, part, i, out) {
    n = split(s, part, "\n")
    for (i = 1; i <= n; i++)
        if (part[i] ~ /[^ ]/) out = out (i == 1 ? "" : macro "\n") lines(part[i])
    return out
}
# Formats a declaration; breaks lines after commas.
function code(s) {
    gsub(/, /, ",\001", s)
    gsub(/ /, "\002", s)
    gsub(/\001/, " ", s)
    s = wrap(s, 72, "    ")
    gsub(/\002/, " ", s)
    gsub(/-/, "\\-", s)
    return s
}
function display(s) { return ".nf\n\\fB" code(s) "\\fR\n.fi\n" }
function squeeze(s) { gsub(/[ \t]+/, " ", s); sub(/^ /, "", s); sub(/ $/, "", s); return s }
# Reads the comment that begins on this line.
function comment(s,    text, more) {
    text = ""
    sub(/^[ \t]*\/\*/, "", s)
    while (s !~ /\*\//) {
        s = squeeze(s)
        text = text (s == "" ? "\n" : " " s)
        if ((getline s) <= 0) { print "man3.awk: a comment without end" >"/dev/stderr"; exit failed = 1 }
        sub(/^[ \t]*\*/, s ~ /^[ \t]*\*\// ? "*" : "", s)
    }
    sub(/\*\/.*/, "", s)
    return squeeze(text " " squeeze(s))
}
# Formats a member of a struct or an enum as a tagged paragraph.
function member(tag, text) {
    return ".TP\n\\fB" code(tag) "\\fR\n" (text == "" ? "\\&\n" : paragraphs(text, ".IP"))
}
function heading(name) { body = body ".SS " name "\n" }

/^#ifdef __cplusplus/ { skipped = 1 }
skipped { if (/^#endif/) skipped = 0; next }
/^#ifndef KVASIR_H/ { intro = text; text = "" }
/^#/ || /^[ \t]*$/ { next }
/SPDX/ { next }
/^\/\* ---- / {
    gsub(/\/\* ---- | ---- \*\//, "")
    body = body ".SH " toupper($0) "\n"
    next
}
/^\/\*/ { text = comment($0); next }
{
    decl = $0
    while (decl !~ /;[ \t]*$/ && decl !~ /\{[ \t]*$/ && (getline line) > 0) decl = decl " " squeeze(line)
    decl = squeeze(decl)
    doc = text
    text = ""
}
decl ~ /^KVASIR_API / {
    sub(/^KVASIR_API /, "", decl)
    name = decl
    sub(/\(.*/, "", name)
    sub(/.*[ *]/, "", name)
    names = names ", " name
    synopsis = synopsis "\n" code(decl)
    heading(name)
    body = body display(decl) (doc == "" ? "" : ".PP\n" paragraphs(doc, ".PP"))
    next
}
decl ~ /^typedef [^{]*;$/ {
    name = decl
    sub(/;$/, "", name)
    sub(/.* /, "", name)
    heading(name)
    body = body display(decl) (doc == "" ? "" : ".PP\n" paragraphs(doc, ".PP"))
    next
}
decl ~ /^enum \{.*\};$/ { # on one line
    gsub(/^enum \{ *| *\};$/, "", decl)
    heading(decl)
    body = body paragraphs(doc, ".PP")
    next
}
decl ~ /^(enum|typedef struct) \{$/ {
    members = first = note = ""
    while ((getline line) > 0 && line !~ /^\}/) {
        if (line ~ /^[ \t]*\/\*/) { note = comment(line); continue }
        if (p = index(line, "/*")) {
            note = comment(substr(line, p))
            line = substr(line, 1, p - 1)
        }
        line = squeeze(line)
        sub(/,$/, "", line)
        members = members member(line, note)
        constant = line
        sub(/ .*/, "", constant)
        first = first (first == "" ? "" : ", ") constant
        note = ""
    }
    if (decl ~ /^typedef/) {
        gsub(/^\} |;.*$/, "", line)
        heading(line)
        body = body display("typedef struct { ... } " line ";") (doc == "" ? "" : ".PP\n")
    } else if (doc != "") heading(first)
    body = body paragraphs(doc, ".PP") members
    next
}
{ print "man3.awk: not understood: " decl >"/dev/stderr"; exit failed = 1 }
END {
    if (failed) exit 1
    sub(/^libkvasir: /, "", intro)
    about = intro
    sub(/\..*/, "", about)
    sub(/^[^\n]*\n */, "", intro)
    print ".\\\" SPDX-License-Identifier: MIT\n.\\\" Made of kvasir.h."
    print ".TH KVASIR 3 \"2026\" \"libkvasir " version "\" \"Library functions\""
    printf ".SH NAME\n%s \\- %s\n", wrap("kvasir" names, 78, ""), roff(about)
    print ".SH SYNOPSIS\n.nf\n\\fB#include <kvasir.h>\n\ncc file.c $(pkg\\-config \\-\\-cflags \\-\\-libs kvasir)"
    printf "%s\\fR\n.fi\n", synopsis
    printf ".SH DESCRIPTION\n%s", paragraphs(intro, ".PP")
    printf "%s", body
    print ".SH SEE ALSO\n.BR kvasir (1),\n.BR pkg\\-config (1)"
}
