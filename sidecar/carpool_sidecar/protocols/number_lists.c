/* A quicker look at lists of lists of numbers; number_lists.py says what is promised.

Each bit of a 64-bit word stands for a byte: one word for digits, one for commas, and so on. That bytes follow each
other as they may is then a matter of shifts by one bit. Only three rules of RFC 8259 reach further back: a number has
one point, one exponent behind it, and no zero in front of other digits. There each run of digits is followed to its end
by adding the bit of its first digit to the run, as the carry comes out behind the last one. What is left over at the
end of a word is carried to the next. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define DEEPEST 64
#define BLOCK 64
#define ODD (-1)
#define DEEPEST_LEAF 50 /* the numbers of Python that tell of the nesting have no more bits */

#if defined(__SSE2__)
#include <emmintrin.h>

/* What a list is made of; each bit a byte. */
typedef struct {
    uint64_t digits, zeros, points, minuses, pluses, exponents, commas, spaces, openings, closings;
    uint64_t leading_zeros, leading_minuses; /* of numbers, not of their exponents */
    uint64_t list_commas, list_spaces;       /* behind a list */
    uint64_t leaf_closings;                  /* of lists that end in a number */
} Block;

typedef struct {
    Block last;
    int whole, fraction; /* carries: the last byte is a digit before, or behind, the point of a number */
    uint64_t whole_digits; /* of the last block, before a point or without one */
    Py_ssize_t depth, room, row_end;
    Py_ssize_t leaf; /* the depth of the lists that numbers are in; 0: not known yet; ODD: they are at several */
    uint64_t begun; /* bits of depths: the list that is open there has a list in it already */
    PyObject *starts, *ends;
} Scan;

enum verdict { FINE, UNKNOWN, FAILED };

static inline uint64_t
joined(const __m128i *flags)
{
    return (uint64_t)(uint16_t)_mm_movemask_epi8(flags[0]) | (uint64_t)(uint16_t)_mm_movemask_epi8(flags[1]) << 16
        | (uint64_t)(uint16_t)_mm_movemask_epi8(flags[2]) << 32 | (uint64_t)(uint16_t)_mm_movemask_epi8(flags[3]) << 48;
}

static inline uint64_t
equal_to(const __m128i *bytes, char wanted)
{
    const __m128i all = _mm_set1_epi8(wanted);
    const __m128i flags[4] = {
        _mm_cmpeq_epi8(bytes[0], all), _mm_cmpeq_epi8(bytes[1], all),
        _mm_cmpeq_epi8(bytes[2], all), _mm_cmpeq_epi8(bytes[3], all),
    };
    return joined(flags);
}

static inline __m128i
are_digits(__m128i bytes)
{
    const __m128i values = _mm_sub_epi8(bytes, _mm_set1_epi8('0'));
    return _mm_cmpeq_epi8(_mm_min_epu8(values, _mm_set1_epi8(9)), values);
}

/* Those bits whose byte comes behind one of `flags`; `last` are those of the block before. */
static inline uint64_t
behind(uint64_t flags, uint64_t last)
{
    return flags << 1 | last >> 63;
}

/* Those runs of `digits` that begin at `starts`, or with the carry at the block's first byte, are no longer set in what
is returned, but the bytes behind them are. */
static inline uint64_t
followed(uint64_t digits, uint64_t starts, int *carry)
{
    const uint64_t begun = digits + starts, sum = begun + (uint64_t)*carry;
    *carry = begun < digits || sum < begun;
    return sum;
}

/* Whether 16 bits in order are set, some of which may be the last ones of the block before. */
static inline int
has_long_run(uint64_t bits, uint64_t last)
{
    if (!(bits & behind(bits, last)))
        return 0; /* as where each number has one digit before its point */
    const int before = ~last ? __builtin_clzll(~last) : 64, first = ~bits ? __builtin_ctzll(~bits) : 64;
    bits &= bits << 1;
    bits &= bits << 2;
    bits &= bits << 4;
    return (bits & bits << 8) || before + first >= 16;
}

/* Whether these 64 bytes, of which the `valid` ones count, may follow those before. */
static inline int
may_follow(Scan *scan, const __m128i *bytes, uint64_t valid, Block *block)
{
    const Block *last = &scan->last;
    const __m128i digits[4] = {are_digits(bytes[0]), are_digits(bytes[1]), are_digits(bytes[2]), are_digits(bytes[3])};
    block->digits = joined(digits);
    block->zeros = equal_to(bytes, '0');
    block->points = equal_to(bytes, '.');
    block->minuses = equal_to(bytes, '-');
    block->commas = equal_to(bytes, ',');
    block->pluses = block->exponents = block->spaces = block->openings = block->closings = 0;
    uint64_t known = block->digits | block->points | block->minuses | block->commas;
    if (known != valid) { /* mostly there is nothing else */
        block->pluses = equal_to(bytes, '+');
        block->exponents = equal_to(bytes, 'e') | equal_to(bytes, 'E');
        block->spaces = equal_to(bytes, ' ');
        block->openings = equal_to(bytes, '[');
        block->closings = equal_to(bytes, ']');
        known |= block->pluses | block->exponents | block->spaces | block->openings | block->closings;
        if (known != valid)
            return 0;
    }
    const uint64_t behind_digit = behind(block->digits, last->digits), behind_comma = behind(block->commas, last->commas);
    const uint64_t behind_opening = behind(block->openings, last->openings);
    const uint64_t behind_closing = behind(block->closings, last->closings);
    const uint64_t behind_exponent = behind(block->exponents, last->exponents);
    block->list_commas = block->commas & behind_closing;
    block->list_spaces = block->spaces & behind(block->list_commas, last->list_commas);
    block->leaf_closings = block->closings & behind_digit;
    const uint64_t beside_lists = behind_opening | behind(block->list_commas, last->list_commas)
        | behind(block->list_spaces, last->list_spaces);
    if ((block->openings & ~beside_lists) | (block->closings & behind_opening))
        scan->leaf = ODD; /* a list beside numbers, or an empty one */
    const uint64_t value = behind_comma | behind_opening | behind(block->spaces, last->spaces); /* may begin here */
    block->leading_minuses = block->minuses & value;
    const uint64_t wholes = block->digits & (value | behind(block->leading_minuses, last->leading_minuses));
    const uint64_t fractions = block->digits & behind(block->points, last->points);
    block->leading_zeros = wholes & block->zeros;
    const uint64_t after_wholes = followed(block->digits, wholes, &scan->whole);
    const uint64_t behind_whole = after_wholes & ~block->digits;
    const uint64_t behind_fraction = followed(block->digits, fractions, &scan->fraction) & ~block->digits;
    const uint64_t whole_digits = block->digits & ~after_wholes;
    if (has_long_run(whole_digits, scan->whole_digits))
        scan->leaf = ODD;
    scan->whole_digits = whole_digits;
    const uint64_t wrong = (block->digits & (behind_closing | behind(block->leading_zeros, last->leading_zeros)))
        | (block->points & ~behind_whole)
        | (block->exponents & ~(behind_whole | behind_fraction))
        | (block->minuses & ~(value | behind_exponent))
        | (block->pluses & ~behind_exponent)
        | (block->commas & ~(behind_digit | behind_closing))
        | (block->spaces & ~behind_comma)
        | (block->openings & ~value)
        | (block->closings & ~(behind_digit | behind_closing | behind_opening));
    return !wrong;
}

static int
append(PyObject *list, Py_ssize_t place)
{
    PyObject *number = PyLong_FromSsize_t(place);
    if (number == NULL)
        return -1;
    const int failed = PyList_Append(list, number);
    Py_DECREF(number);
    return failed;
}

/* There is a number in the innermost list that is open. */
static inline void
note_number(Scan *scan)
{
    if (scan->leaf == 0 && scan->depth <= DEEPEST_LEAF)
        scan->leaf = scan->depth;
    else if (scan->leaf != scan->depth)
        scan->leaf = ODD;
}

/* Follow the brackets of a block that begins `at` some place. */
static enum verdict
follow(Scan *scan, const Block *block, Py_ssize_t at, Py_ssize_t shift)
{
    for (uint64_t left = block->openings | block->closings; left; left &= left - 1) {
        const int bit = __builtin_ctzll(left);
        const Py_ssize_t place = at + bit;
        if (block->openings >> bit & 1) {
            if (scan->depth == scan->leaf)
                scan->leaf = ODD;
            if (scan->depth == 1) {
                /* Between two rows there is nothing but a comma, and perhaps a space. */
                if (place - scan->row_end > 3 || scan->room-- <= 0)
                    return UNKNOWN;
                if (append(scan->starts, place + shift) < 0)
                    return FAILED;
            }
            if (++scan->depth > DEEPEST)
                return UNKNOWN;
        } else {
            if (block->leaf_closings >> bit & 1)
                note_number(scan);
            if (--scan->depth < 1)
                return UNKNOWN;
            const uint64_t own = UINT64_C(1) << (scan->depth - 1);
            scan->begun = (scan->begun & (own - 1)) | own; /* and nothing of lists that are closed */
            if (scan->depth == 1) {
                scan->row_end = place;
                if (append(scan->ends, place + 1 + shift) < 0)
                    return FAILED;
            }
        }
    }
    return FINE;
}

static enum verdict
look(Scan *scan, const char *text, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t shift)
{
    scan->last.commas = scan->last.list_commas = UINT64_C(1) << 63; /* a value may begin, a list as well */
    scan->row_end = start - 2; /* then there was a comma */
    for (Py_ssize_t at = start; at < stop; at += BLOCK) {
        char rest[BLOCK] = {0};
        if (scan->depth == 1 && at - scan->row_end > 3)
            return UNKNOWN; /* rows that are numbers themselves: not to be found out at the end */
        const char *from = text + at;
        uint64_t valid = ~UINT64_C(0);
        if (stop - at < BLOCK) {
            memcpy(rest, from, (size_t)(stop - at));
            from = rest;
            valid = (UINT64_C(1) << (stop - at)) - 1;
        }
        const __m128i bytes[4] = {
            _mm_loadu_si128((const __m128i *)from), _mm_loadu_si128((const __m128i *)(from + 16)),
            _mm_loadu_si128((const __m128i *)(from + 32)), _mm_loadu_si128((const __m128i *)(from + 48)),
        };
        Block block;
        if (!may_follow(scan, bytes, valid, &block))
            return UNKNOWN;
        const enum verdict found = follow(scan, &block, at, shift);
        if (found != FINE)
            return found;
        scan->last = block;
    }
    /* A comma may follow, which wants a value before it; in the list of rows that has to be a row. */
    const int bit = (int)((stop - start - 1) % BLOCK);
    if (!((scan->last.digits | scan->last.closings) >> bit & 1))
        return UNKNOWN;
    if (scan->last.digits >> bit & 1)
        note_number(scan);
    return scan->depth > 1 || scan->row_end == stop - 1 ? FINE : UNKNOWN;
}

static PyObject *
find_in(const Py_buffer *text, const Py_ssize_t *numbers)
{
    const Py_ssize_t start = numbers[0], stop = numbers[1];
    const Py_ssize_t nesting = numbers[5];
    Scan scan = {.depth = numbers[2], .room = numbers[4]};
    scan.leaf = nesting < 0 ? ODD : nesting & 63;
    scan.begun = nesting < 0 ? 0 : (uint64_t)nesting >> 6;
    if (start < 0 || start >= stop || stop > text->len || scan.depth < 1 || scan.depth > DEEPEST)
        Py_RETURN_NONE;
    scan.starts = PyList_New(0);
    scan.ends = PyList_New(0);
    enum verdict found = FAILED;
    if (scan.starts != NULL && scan.ends != NULL)
        found = look(&scan, text->buf, start, stop, numbers[3]);
    PyObject *result = NULL;
    if (found == FINE)
        result = Py_BuildValue(
            "(nOOn)", scan.depth, scan.starts, scan.ends,
            scan.leaf == ODD ? -1 : (Py_ssize_t)(scan.leaf | (scan.begun & ((UINT64_C(1) << scan.leaf) - 1)) << 6));
    else if (found == UNKNOWN)
        result = Py_NewRef(Py_None);
    Py_XDECREF(scan.starts);
    Py_XDECREF(scan.ends);
    return result;
}
#else /* other processors: it is for msgspec's decoder to tell */
static PyObject *
find_in(const Py_buffer *text, const Py_ssize_t *numbers)
{
    Py_RETURN_NONE;
}
#endif

static PyObject *
find(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    Py_ssize_t numbers[6];
    if (count != 7) {
        PyErr_SetString(PyExc_TypeError, "find() takes text, start, stop, depth, shift, room and nesting");
        return NULL;
    }
    for (int i = 0; i < 6; i++) {
        numbers[i] = PyLong_AsSsize_t(arguments[i + 1]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    Py_buffer text;
    if (PyObject_GetBuffer(arguments[0], &text, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = find_in(&text, numbers);
    PyBuffer_Release(&text);
    return result;
}

static PyMethodDef methods[] = {
    {"find", (PyCFunction)(void (*)(void))find, METH_FASTCALL, "See number_lists.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "number_lists", .m_doc = "See number_lists.py.", .m_methods = methods,
};

PyMODINIT_FUNC
PyInit_number_lists(void)
{
    return PyModuleDef_Init(&definition);
}
