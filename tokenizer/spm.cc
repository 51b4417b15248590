// SPDX-License-Identifier: MIT
#include "config.h"

#include <sentencepiece_processor.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <vector>

extern "C" {
#include "kernels/base/err.h"
#include "kernels/base/mem.h"
}
#include "tokenizer/spm.h"

using sentencepiece::SentencePieceProcessor;

struct spm {
    SentencePieceProcessor main;
    // same model without the dummy prefix, loaded at first use
    mutable SentencePieceProcessor bare;
    mutable std::mutex bare_lock;
    mutable bool bare_made = false, bare_ok = false;
    std::string unknown; // text that the library prints for an unknown piece
    int32_t byte_ids[256];
    spm_strip strip = SPM_KEEP_SPACE;
    bool cuttable = false; // text can be cut before spaces, see can_cut
};

namespace
{

constexpr char kSpaceMark[] = "\xe2\x96\x81";

// Returns the rule for the first space mark. The library's headers do not expose it, so it is found by decoding.
spm_strip ask_strip_rule(const SentencePieceProcessor &p)
{
    for (int id = 0; id < p.GetPieceSize(); id++) {
        const std::string &piece = p.IdToPiece(id);
        if (p.IsControl(id) || p.IsUnknown(id) || p.IsByte(id) || p.IsUnused(id)) continue;
        if (piece.compare(0, 3, kSpaceMark) != 0) continue;
        std::string once, twice;
        if (!p.Decode(std::vector<int>{id}, &once).ok()) continue;
        if (!once.empty() && once[0] == ' ' && piece.compare(0, 6, "\xe2\x96\x81\xe2\x96\x81") != 0)
            return SPM_KEEP_SPACE;
        const int mark = p.PieceToId(kSpaceMark);
        if (p.IsUnknown(mark)) return SPM_STRIP_ONE;
        if (!p.Decode(std::vector<int>{mark, mark}, &twice).ok()) continue;
        return twice.empty() ? SPM_STRIP_ALL : SPM_STRIP_ONE;
    }
    return SPM_KEEP_SPACE;
}

// Reads a protobuf field at in[*at..]. *value: its number, or its length if *body is set.
bool next_field(std::string_view in, size_t *at, unsigned *field, uint64_t *value, std::string_view *body)
{
    const auto varint = [&](uint64_t *v) {
        *v = 0;
        for (unsigned shift = 0; shift < 64 && *at < in.size(); shift += 7) {
            const auto byte = static_cast<unsigned char>(in[(*at)++]);
            *v |= static_cast<uint64_t>(byte & 0x7f) << shift;
            if (byte < 0x80) return true;
        }
        return false;
    };
    uint64_t tag = 0, size = 0;
    *value = 0;
    *body = {};
    if (!varint(&tag)) return false;
    *field = static_cast<unsigned>(tag >> 3);
    switch (tag & 7) {
    case 0: return varint(value);
    case 1: size = 8; break;
    case 2:
        if (!varint(&size)) return false;
        break;
    case 5: size = 4; break;
    default: return false;
    }
    if (size > in.size() - *at) return false;
    *body = in.substr(*at, size);
    *value = size;
    *at += size;
    return true;
}

// True if the normalizer only turns spaces into marks. normalizer_spec is field 3 of the model; its fields are: 2 the
// character map, 4 remove_extra_whitespaces, 5 escape_whitespaces, 6 the source of the rules.
bool plain_normalizer(std::string_view model)
{
    bool remove_extra = true, escape = true;
    unsigned field = 0, inner = 0;
    uint64_t value = 0;
    std::string_view spec, body;
    for (size_t at = 0; at < model.size();) {
        if (!next_field(model, &at, &field, &value, &spec)) return false;
        if (field != 3) continue;
        for (size_t k = 0; k < spec.size();) {
            if (!next_field(spec, &k, &inner, &value, &body)) return false;
            if ((inner == 2 || inner == 6) && value) return false;
            if (inner == 4) remove_extra = value;
            if (inner == 5) escape = value;
        }
    }
    return escape && !remove_extra;
}

// True if text can be cut before a run of spaces without changing ids: no piece has a space mark after another
// character, so nothing merges across. The library's time grows faster than linearly with the text.
bool can_cut(const SentencePieceProcessor &p)
{
    if (p.IsUnknown(p.PieceToId(kSpaceMark)) || !plain_normalizer(p.serialized_model_proto())) return false;
    for (int id = 0; id < p.GetPieceSize(); id++) {
        const std::string &piece = p.IdToPiece(id);
        size_t at = 0;
        while (piece.compare(at, 3, kSpaceMark) == 0) at += 3;
        if (piece.find(kSpaceMark, at) != std::string::npos) return false;
    }
    return true;
}

// Returns the end of the part of text that starts at `from`. Never cuts between 0x81, the last byte of the mark, and a
// space.
size_t next_cut(const spm *s, std::string_view text, size_t from)
{
    constexpr size_t kPart = 4096;
    if (!s->cuttable || text.size() - from <= 2 * kPart) return text.size();
    for (size_t i = from + kPart; i < text.size(); i++)
        if (text[i] == ' ' && text[i - 1] != ' ' && text[i - 1] != '\x81') return i;
    return text.size();
}

void fill(spm *s)
{
    for (int c = 0; c < 256; c++) {
        char name[8];
        std::snprintf(name, sizeof name, "<0x%02X>", c);
        const int id = s->main.PieceToId(name);
        s->byte_ids[c] = s->main.IsByte(id) ? id : -1;
    }
    const int unk = s->main.unk_id();
    if (unk >= 0) s->main.Decode(std::vector<int>{unk}, &s->unknown).IgnoreError();
    s->strip = ask_strip_rule(s->main);
    s->cuttable = can_cut(s->main);
}

// Loads the model without the dummy prefix. Protobuf merges repeated message fields, so appending normalizer_spec {
// add_dummy_prefix: false } (field 3 in field 3) overrides only that flag. std::call_once is not used: it needs static
// TLS, which can be exhausted in a Python process with many libraries.
bool have_bare(const spm *s)
{
    const std::lock_guard<std::mutex> hold(s->bare_lock);
    if (s->bare_made) return s->bare_ok;
    std::string model = s->main.serialized_model_proto();
    model.append("\x1a\x02\x18\x00", 4);
    s->bare_ok = s->bare.LoadFromSerializedProto(model).ok();
    s->bare_made = true;
    return s->bare_ok;
}

// Encodes text part by part. Only the first part gets the dummy prefix.
sentencepiece::util::Status encode_parts(const spm *s, std::string_view text, bool prefix, std::vector<int> *ids)
{
    std::vector<int> part;
    for (size_t from = 0, to; from < text.size(); from = to) {
        to = next_cut(s, text, from);
        const SentencePieceProcessor *p = &s->main;
        if (!prefix || from > 0) {
            if (!have_bare(s)) return s->bare.status();
            p = &s->bare;
        }
        const auto st = p->Encode(text.substr(from, to - from), &part);
        if (!st.ok()) return st;
        ids->insert(ids->end(), part.begin(), part.end());
    }
    return {};
}

bool known(const spm *s, int32_t id)
{
    return id >= 0 && id < s->main.GetPieceSize();
}

} // namespace

status spm_open(spm **out, const char *data, size_t n, const char *name, err *e) noexcept
{
    *out = nullptr;
    try {
        auto s = std::make_unique<spm>();
        const auto st = s->main.LoadFromSerializedProto(std::string_view(data, n));
        if (!st.ok() || s->main.GetPieceSize() == 0)
            return err_set(e, ST_FORMAT, "%s: not a SentencePiece model: %s", name,
                           st.ok() ? "no pieces" : st.ToString().c_str());
        fill(s.get());
        *out = s.release();
        return ST_OK;
    } catch (const std::bad_alloc &) {
        return err_set(e, ST_NOMEM, "%s: out of memory", name);
    } catch (...) {
        return err_set(e, ST_FORMAT, "%s: not a SentencePiece model", name);
    }
}

void spm_free(spm *s) noexcept
{
    delete s;
}

int32_t spm_n_ids(const spm *s) noexcept
{
    return s->main.GetPieceSize();
}

int32_t spm_bos(const spm *s) noexcept
{
    return s->main.bos_id();
}

int32_t spm_eos(const spm *s) noexcept
{
    return s->main.eos_id();
}

spm_kind spm_kind_of(const spm *s, int32_t id) noexcept
{
    if (!known(s, id)) return SPM_UNUSED;
    if (s->main.IsUnknown(id)) return SPM_UNKNOWN;
    if (s->main.IsControl(id)) return SPM_CONTROL;
    if (s->main.IsByte(id)) return SPM_BYTE;
    return s->main.IsUnused(id) ? SPM_UNUSED : SPM_NORMAL;
}

const char *spm_piece(const spm *s, int32_t id, size_t *n) noexcept
{
    *n = 0;
    if (!known(s, id)) return nullptr;
    const std::string &p = s->main.IsUnknown(id) ? s->unknown : s->main.IdToPiece(id);
    *n = p.size();
    return p.c_str();
}

int32_t spm_byte_id(const spm *s, unsigned char c) noexcept
{
    return s->byte_ids[c];
}

spm_strip spm_strip_rule(const spm *s) noexcept
{
    return s->strip;
}

status spm_encode(const spm *s, const char *text, size_t n, int prefix, int32_t **ids, size_t *n_ids, err *e) noexcept
{
    *ids = nullptr;
    *n_ids = 0;
    try {
        std::vector<int> got;
        const auto st = encode_parts(s, std::string_view(text, n), prefix != 0, &got);
        if (!st.ok()) return err_set(e, ST_FORMAT, "SentencePiece: %s", st.ToString().c_str());
        const status made = mem_alloc(reinterpret_cast<void **>(ids), got.size(), sizeof **ids, "ids", e);
        if (made != ST_OK) return made;
        for (size_t i = 0; i < got.size(); i++) (*ids)[i] = got[i];
        *n_ids = got.size();
        return ST_OK;
    } catch (const std::bad_alloc &) {
        return err_set(e, ST_NOMEM, "SentencePiece: out of memory for %zu bytes of text", n);
    } catch (...) {
        return err_set(e, ST_FORMAT, "SentencePiece failed");
    }
}
