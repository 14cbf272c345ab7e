/* The form of JSON text; form_scan.py says what is promised.

The form is written while the text is read. What is open so far is all that has to be known to go on, and is told by
the form itself. So a text in pieces needs nothing between two of them but the form up to there. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#define DEEPEST 1000
#define LONGEST (64 * 1024)
#define MOST_ROWS 256 /* of different forms */
#define SLOTS (2 * MOST_ROWS)
#define BIG 16 /* digits of a whole number that may be beyond 2 ** 53 */
#define LEAST "9223372036854775808" /* of 64 bits, behind its sign */
#define MOST "9223372036854775807"
#define MOST_UNSIGNED "18446744073709551615"

/* What numbers are, in detail: a byte that no UTF-8 begins with, and bits. */
enum { NUMBER = 0x80, WHOLE = 1, FRACTION = 2, UNSIGNED = 4, HUGE_NUMBER = 8, NEGATIVE = 16 };

typedef struct {
    int at, size; /* where in the form it is */
} Span;

typedef struct {
    int at;    /* where in the form it begins */
    int last;  /* of a list: where the form of its last value begins, NONE if there is none; of an object: OBJECT */
} Level;

enum { NONE = -1, OBJECT = -2 };

typedef struct {
    Level levels[DEEPEST + 1];
    int depth, length;
    int is_name;      /* the next string in the innermost object is a name */
    int is_in_string; /* the text ended within a string */
    int in_detail;
    int count, same; /* forms of rows, and the one that the last row has */
    int number;      /* where the one of rows that are numbers is; 0 if there is none */
    Span rows[MOST_ROWS];
    short slots[SLOTS]; /* each form by its hash, once there are two; -1 for none */
    char form[LONGEST + 1];
} Scan;

static inline int
is_number(char byte)
{
    return byte == 'n' || ((unsigned char)byte & 0xE0) == NUMBER;
}

/* The slot of a form: that of an equal one, or one that is free. */
static short *
slot_of(Scan *scan, int at, int size)
{
    unsigned hash = 2166136261u; /* FNV-1a */
    for (int i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)scan->form[at + i]) * 16777619u;
    for (unsigned place = hash % SLOTS;; place = (place + 1) % SLOTS) {
        short *slot = &scan->slots[place];
        const Span *row = &scan->rows[*slot < 0 ? 0 : *slot];
        if (*slot < 0 || (row->size == size && memcmp(scan->form + row->at, scan->form + at, (size_t)size) == 0))
            return slot;
    }
}

/* A row is complete: its form is left out if any row had it. 0 if there are too many forms. */
static int
end_row(Scan *scan, int at)
{
    const int size = scan->length - at;
    if (size == 1 && is_number(scan->form[at])) {
        if (scan->number) {
            scan->form[scan->number] |= scan->form[at];
            scan->length = at;
        } else
            scan->number = at;
        return 1;
    }
    const Span *same = &scan->rows[scan->same];
    if (scan->count && same->size == size && memcmp(scan->form + same->at, scan->form + at, (size_t)size) == 0) {
        scan->length = at;
        return 1;
    }
    if (scan->count == 1) {
        memset(scan->slots, -1, sizeof scan->slots);
        *slot_of(scan, scan->rows[0].at, scan->rows[0].size) = 0;
    }
    short *slot = scan->count ? slot_of(scan, at, size) : NULL;
    if (slot != NULL && *slot >= 0) {
        scan->same = *slot;
        scan->length = at;
        return 1;
    }
    if (scan->count == MOST_ROWS)
        return 0;
    if (slot != NULL)
        *slot = (short)scan->count;
    scan->rows[scan->count] = (Span){at, size};
    scan->same = scan->count++;
    return 1;
}

/* A value is complete, whose form begins at a place of the form: one that is as the last one is left out. */
static inline int
end_value(Scan *scan, int at)
{
    Level *level = &scan->levels[scan->depth];
    if (level->last == OBJECT)
        return 1;
    if (scan->depth == 1)
        return end_row(scan, at);
    const int last = level->last, size = scan->length - at;
    if (last >= 0 && at - last == size) {
        if (size == 1 && is_number(scan->form[at]) && is_number(scan->form[last])) {
            scan->form[last] |= scan->form[at];
            scan->length = at;
            return 1;
        }
        if (memcmp(scan->form + last, scan->form + at, (size_t)size) == 0) {
            scan->length = at;
            return 1;
        }
    }
    level->last = at;
    return 1;
}

static inline int
put(Scan *scan, const char *bytes, Py_ssize_t size)
{
    if (size > LONGEST - scan->length)
        return 0;
    memcpy(scan->form + scan->length, bytes, (size_t)size);
    scan->length += (int)size;
    return 1;
}

static inline int
put_value(Scan *scan, char kind)
{
    return put(scan, &kind, 1) && end_value(scan, scan->length - 1);
}

static inline int
open_level(Scan *scan, char bracket)
{
    if (scan->depth == DEEPEST)
        return 0;
    Level *level = &scan->levels[++scan->depth];
    level->at = scan->length;
    level->last = bracket == '{' ? OBJECT : NONE;
    scan->is_name = bracket == '{';
    return put(scan, &bracket, 1);
}

static inline int
close_level(Scan *scan, char bracket)
{
    if (scan->depth == 0 || !put(scan, &bracket, 1))
        return 0;
    const int at = scan->levels[scan->depth--].at;
    return end_value(scan, at);
}

/* The byte behind a string whose opening quote is before `at`; NULL if it does not end. */
static inline const char *
behind_string(const char *at, const char *stop)
{
    for (const char *first = at; at < stop; at++) {
        at = memchr(at, '"', (size_t)(stop - at));
        if (at == NULL)
            return NULL;
        const char *slash = at;
        while (slash > first && slash[-1] == '\\')
            slash--;
        if ((at - slash) % 2 == 0)
            return at + 1;
    }
    return NULL;
}

static inline int
is_digit(char byte)
{
    return byte >= '0' && byte <= '9';
}

static inline int
is_letter(char byte)
{
    return (unsigned)((byte | 32) - 'a') < 26;
}

/* The byte behind a number that begins at a place, whose kind is told; without detail that of a big one is 0. */
static inline const char *
behind_number(const Scan *scan, const char *at, const char *stop, char *kind)
{
    const int is_negative = *at == '-';
    const char *digits = at += is_negative;
    while (at < stop && is_digit(*at))
        at++;
    const Py_ssize_t count = at - digits;
    int is_fraction = count == 0; /* Infinity, NaN */
    while (at < stop && (is_digit(*at) || *at == '.' || *at == '-' || *at == '+' || is_letter(*at))) {
        is_fraction = 1;
        at++;
    }
    *kind = 'n';
    if (!scan->in_detail) {
        if (count >= BIG && !is_fraction)
            *kind = 0;
        return at;
    }
    int bits = WHOLE | (is_negative ? NEGATIVE : 0);
    if (is_fraction)
        bits = FRACTION;
    else if (count > 20 || (count == 20 && memcmp(digits, MOST_UNSIGNED, 20) > 0))
        bits |= HUGE_NUMBER;
    else if (count == 20 || (count == 19 && memcmp(digits, is_negative ? LEAST : MOST, 19) > 0))
        bits |= is_negative ? HUGE_NUMBER : UNSIGNED;
    *kind = (char)(NUMBER | bits);
    return at;
}

/* Find out what is open behind a form. */
static int
go_on(Scan *scan, const char *form, Py_ssize_t size)
{
    const char *stop = form + size;
    if (size > LONGEST)
        return 0;
    for (const char *at = form; at < stop;) {
        const char byte = *at;
        if (byte == '"') {
            const char *behind = behind_string(at + 1, stop);
            if (behind == NULL) {
                scan->is_in_string = 1; /* a value's: names are never cut */
                break;
            }
            if (!put(scan, at, behind - at))
                return 0;
            at = behind;
            continue;
        }
        if (byte == '[' || byte == '{') {
            if (!open_level(scan, byte))
                return 0;
        } else if (byte == ']' || byte == '}') {
            if (!close_level(scan, byte))
                return 0;
        } else if (!put_value(scan, byte))
            return 0;
        at++;
    }
    scan->is_name = scan->depth > 0; /* behind a comma */
    return 1;
}

static int
look(Scan *scan, const char *at, const char *stop)
{
    if (scan->is_in_string) {
        at = behind_string(at, stop);
        if (at == NULL)
            return 1;
        scan->is_in_string = 0;
    }
    while (at < stop) {
        const char byte = *at;
        switch (byte) {
        case '"': {
            const char *behind = behind_string(at + 1, stop);
            if (scan->levels[scan->depth].last == OBJECT && scan->is_name) {
                if (behind == NULL || !put(scan, at, behind - at))
                    return 0;
            } else if (!put_value(scan, 's'))
                return 0;
            if (behind == NULL) {
                scan->is_in_string = 1;
                return 1;
            }
            at = behind;
            break;
        }
        case '[':
        case '{':
            if (!open_level(scan, byte))
                return 0;
            at++;
            break;
        case ']':
        case '}':
            if (!close_level(scan, byte))
                return 0;
            at++;
            break;
        case ',':
            scan->is_name = 1;
            at++;
            break;
        case ':':
            scan->is_name = 0;
            at++;
            break;
        case 't':
        case 'f':
            if (!put_value(scan, 'b'))
                return 0;
            at += byte == 't' ? 4 : 5;
            break;
        case 'n':
            if (!put_value(scan, '0'))
                return 0;
            at += 4;
            break;
        case '-': case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
        case 'I': case 'N': {
            char kind;
            at = behind_number(scan, at, stop, &kind);
            if (kind == 0 || !put_value(scan, kind))
                return 0;
            break;
        }
        default:
            at++;
        }
    }
    return 1;
}

static Scan shared; /* who works on it holds the lock of the interpreter */

static PyObject *
scan(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "scan() takes form, text, start, stop and in_detail");
        return NULL;
    }
    char *form;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(arguments[0], &form, &size) < 0)
        return NULL;
    const Py_ssize_t start = PyLong_AsSsize_t(arguments[2]), stop = PyLong_AsSsize_t(arguments[3]);
    const int in_detail = PyObject_IsTrue(arguments[4]);
    if (((start == -1 || stop == -1) && PyErr_Occurred()) || in_detail < 0)
        return NULL;
    Py_buffer text;
    if (PyObject_GetBuffer(arguments[1], &text, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = NULL;
    if (start < 0 || start > stop || stop > text.len) {
        PyErr_SetString(PyExc_ValueError, "start and stop must be in the text");
    } else {
        shared.depth = shared.length = shared.is_in_string = 0;
        shared.is_name = shared.count = shared.same = shared.number = 0;
        shared.in_detail = in_detail;
        shared.levels[0].at = 0;
        shared.levels[0].last = OBJECT; /* the value itself is beside no other */
        const char *bytes = text.buf;
        if (!go_on(&shared, form, size) || !look(&shared, bytes + start, bytes + stop)) {
            result = Py_NewRef(Py_None);
        } else {
            if (shared.is_in_string)
                shared.form[shared.length++] = '"';
            result = PyBytes_FromStringAndSize(shared.form, shared.length);
        }
    }
    PyBuffer_Release(&text);
    return result;
}

static PyMethodDef methods[] = {
    {"scan", (PyCFunction)(void (*)(void))scan, METH_FASTCALL, "See form_scan.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "form_scan", .m_doc = "See form_scan.py.", .m_methods = methods,
};

PyMODINIT_FUNC
PyInit_form_scan(void)
{
    return PyModuleDef_Init(&definition);
}
