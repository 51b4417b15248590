/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "grammar/lexical.h"

/* ---- strings ---- */

/* Positions after STRING_ESCAPE. HEX + k: after k digits of \u; LOW + k: of the second half of a surrogate pair;
 * TAIL + k: before the last k + 1 bytes of a character, of which the first is in the range of aux. */
enum { HEX = 2, PAIR = 6, PAIR_U = 7, LOW = 8, TAIL = 12 };

enum { TAIL_ANY = 0x80 << 8 | 0xbf };

/* Returns the allowed range of the second byte of a character, as high and low byte of an integer, and sets *rest to
 * the number of bytes after the first. 0: not the first byte of a character. Source: The Unicode Standard, table 3-7.
 */
static uint16_t after_first(unsigned char b, unsigned *rest)
{
    *rest = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
    if (b < 0xc2 || b > 0xf4) return 0;
    if (b == 0xe0) return 0xa0 << 8 | 0xbf;
    if (b == 0xed) return 0x80 << 8 | 0x9f;
    if (b == 0xf0) return 0x90 << 8 | 0xbf;
    if (b == 0xf4) return 0x80 << 8 | 0x8f;
    return TAIL_ANY;
}

static int hex_value(unsigned char b)
{
    return b >= '0' && b <= '9'   ? b - '0'
           : b >= 'a' && b <= 'f' ? b - 'a' + 10
           : b >= 'A' && b <= 'F' ? b - 'A' + 10
                                  : -1;
}

static string_effect begin_character(uint8_t *text, uint16_t *aux, unsigned char b)
{
    unsigned rest;
    if (b == '"') return STRING_CLOSED;
    if (b < 0x20) return STRING_REFUSED;
    if (b < 0x80) {
        *text = b == '\\' ? STRING_ESCAPE : STRING_NEXT;
        return b == '\\' ? STRING_GOES_ON : STRING_CHARACTER;
    }
    if (!(*aux = after_first(b, &rest))) return STRING_REFUSED;
    *text = (uint8_t)(TAIL + rest - 1);
    return STRING_GOES_ON;
}

static string_effect after_backslash(uint8_t *text, uint16_t *aux, unsigned char b)
{
    *aux = 0;
    *text = b == 'u' ? HEX : STRING_NEXT;
    if (b == 'u') return STRING_GOES_ON;
    return b == '"' || b == '\\' || b == '/' || b == 'b' || b == 'f' || b == 'n' || b == 'r' || b == 't'
               ? STRING_CHARACTER
               : STRING_REFUSED;
}

/* Takes digit k of \u, from 0. */
static string_effect hex_digit(uint8_t *text, uint16_t *aux, unsigned k, unsigned char b)
{
    const int digit = hex_value(b);
    if (digit < 0) return STRING_REFUSED;
    const unsigned v = (unsigned)*aux << 4 | (unsigned)digit;
    *aux = (uint16_t)v;
    if (k == 1 && v >= 0xdc && v <= 0xdf) return STRING_REFUSED;
    if (k < 3) {
        ++*text;
        return STRING_GOES_ON;
    }
    if (v == 0) return STRING_REFUSED;
    *text = v >= 0xd800 && v <= 0xdbff ? PAIR : STRING_NEXT;
    return *text == PAIR ? STRING_GOES_ON : STRING_CHARACTER;
}

/* Takes digit k of the second half of a pair, which is DC00 to DFFF. */
static string_effect low_digit(uint8_t *text, unsigned k, unsigned char b)
{
    const int digit = hex_value(b);
    if (digit < 0 || (k == 0 && digit != 0xd) || (k == 1 && digit < 0xc)) return STRING_REFUSED;
    *text = k == 3 ? STRING_NEXT : (uint8_t)(*text + 1);
    return k == 3 ? STRING_CHARACTER : STRING_GOES_ON;
}

string_effect string_step(uint8_t *text, uint16_t *aux, unsigned char b)
{
    const uint8_t at = *text;
    if (at == STRING_NEXT) return begin_character(text, aux, b);
    if (at == STRING_ESCAPE) return after_backslash(text, aux, b);
    if (at < PAIR) return hex_digit(text, aux, at - HEX, b);
    if (at < LOW) {
        ++*text;
        return b == (at == PAIR ? '\\' : 'u') ? STRING_GOES_ON : STRING_REFUSED;
    }
    if (at < TAIL) return low_digit(text, at - LOW, b);
    if (b < *aux >> 8 || b > (*aux & 0xff)) return STRING_REFUSED;
    *aux = TAIL_ANY;
    *text = at == TAIL ? STRING_NEXT : (uint8_t)(at - 1);
    return at == TAIL ? STRING_CHARACTER : STRING_GOES_ON;
}

/* ---- numbers ---- */

enum { NOTHING, SIGN, ZERO, WHOLE, POINT, FRACTION, EXPONENT, EXPONENT_SIGN, EXPONENT_DIGIT, EXPONENT_END };

static wide power(int n)
{
    wide x = 1;
    while (n-- > 0) x *= 10;
    return x;
}

/* Returns the bounds of the magnitude of a number with this sign. Empty if low > high. */
static void magnitudes(const node *p, bool negative, wide *low, wide *high)
{
    *low = negative ? -p->number.high : p->number.low;
    *high = negative ? -p->number.low : p->number.high;
    if (*low < 0) *low = 0;
}

/* True if [from, to], in units of 1e-`places`, has a member between the bounds. */
static bool overlaps(const node *p, bool negative, wide from, wide to, int places)
{
    wide low, high, unit = power(UNIT_SHIFT - places);
    magnitudes(p, negative, &low, &high);
    if (low > high) return false;
    low = (low + unit - 1) / unit;
    high /= unit;
    return (from > low ? from : low) <= (to < high ? to : high);
}

/* True if the number, or one that begins with it, is between the bounds. */
static bool may_reach(const node *p, const number_state *s)
{
    const int left = p->number.digits - s->digits, places = p->number.fraction;
    const wide v = s->value;
    if (s->part == SIGN) { /* an integer -0 is refused */
        for (int first = 1; first <= 9; first++)
            if (may_reach(p, &(number_state){WHOLE, s->negative, 1, 0, (uint64_t)first})) return true;
        return places > 0 && may_reach(p, &(number_state){.part = ZERO, .negative = s->negative});
    }
    if (s->part == ZERO || s->part == POINT || s->part == FRACTION) {
        const int more = left < places - s->fraction ? left : places - s->fraction;
        return more + (s->part != POINT) > 0 &&
               overlaps(p, s->negative, v * power(more), (v + 1) * power(more) - 1, s->fraction + more);
    }
    for (int whole = 0; whole <= left; whole++) {
        const int after = left - whole < places ? left - whole : places;
        const wide scale = power(whole + after);
        if (overlaps(p, s->negative, v * scale, (v + 1) * scale - 1, after)) return true;
    }
    return false;
}

/* Adds a digit before or after the point. */
static bool add_digit(const node *p, number_state *s, unsigned char b)
{
    const bool fraction = s->part == POINT || s->part == FRACTION, integer = p->number.fraction == 0;
    const int most = p->number.bounded || integer ? p->number.digits : FRACTION_DIGITS;
    if (s->part == ZERO || (s->part == SIGN && b == '0' && integer)) return false;
    if (fraction ? s->fraction == p->number.fraction : s->digits == most) return false;
    if (fraction && p->number.bounded && s->digits == p->number.digits) return false;
    if (!fraction && b == '0' && s->part < WHOLE) {
        s->part = ZERO;
        return true;
    }
    s->part = fraction ? FRACTION : WHOLE;
    s->digits++;
    s->fraction = (uint8_t)(s->fraction + fraction);
    if (p->number.bounded) s->value = s->value * 10 + (unsigned)(b - '0');
    return true;
}

static bool exponent_step(const node *p, number_state *s, unsigned char b)
{
    const bool digit = b >= '0' && b <= '9';
    const uint8_t from = s->part;
    if (from == ZERO || from == WHOLE || from == FRACTION) {
        s->part = EXPONENT;
        return p->number.exponent && (b == 'e' || b == 'E');
    }
    if (from == EXPONENT && (b == '+' || b == '-')) s->part = EXPONENT_SIGN;
    else if (digit && (from == EXPONENT || from == EXPONENT_SIGN)) s->part = EXPONENT_DIGIT;
    else if (digit && from == EXPONENT_DIGIT) s->part = EXPONENT_END;
    else return false;
    return true;
}

bool number_step(const node *p, number_state *s, unsigned char b)
{
    if (s->part == NOTHING && b == '-') {
        s->part = SIGN;
        s->negative = true;
    } else if ((s->part == ZERO || s->part == WHOLE) && b == '.') {
        if (p->number.fraction == 0) return false;
        s->part = POINT;
    } else if (s->part < EXPONENT && b >= '0' && b <= '9') {
        if (!add_digit(p, s, b)) return false;
    } else {
        return exponent_step(p, s, b);
    }
    return !p->number.bounded || may_reach(p, s);
}

bool number_may_end(const node *p, const number_state *s)
{
    const bool complete = s->part == ZERO || s->part == WHOLE || s->part == FRACTION || s->part >= EXPONENT_DIGIT;
    return complete && (!p->number.bounded || overlaps(p, s->negative, (wide)s->value, (wide)s->value, s->fraction));
}
