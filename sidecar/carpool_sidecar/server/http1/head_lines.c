/* The lines of a head; head_lines.py says what is promised.

A head is read once, from its first byte to its last: a name up to its colon, byte by byte, and a value up to the first
byte that is not visible, which has to be the line's end. Strings are made of what is handed out only. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define MOST_LINES 128
#define MATTERS (-1)
#define REFUSED (-2)
#define MOST_PLACES 64
#define LENGTHS 32 /* names of so many bytes and more share a chain */

typedef struct {
    const unsigned char *start, *stop;
} Span;

/* tchar of RFC 9110, section 5.6.2. */
static int
is_token(unsigned char code)
{
    if ((code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z') || (code >= '0' && code <= '9'))
        return 1;
    return code != 0 && code < 128 && strchr("!#$%&'*+-.^_`|~", code) != NULL;
}

static unsigned char tokens[256]; /* a token's letters in lower case; 0 for what may not be in one */

static void
fill_tokens(void)
{
    for (int code = 0; code < 256; code++)
        if (is_token((unsigned char)code))
            tokens[code] = (unsigned char)(code >= 'A' && code <= 'Z' ? code + 32 : code);
}

/* The first byte from `at` on that is not visible ASCII, or `end`. */
static const unsigned char *
invisible(const unsigned char *at, const unsigned char *end)
{
#if defined(__SSE2__)
    const __m128i below = _mm_set1_epi8(31), deleted = _mm_set1_epi8(127);
    for (; end - at >= 16; at += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        /* As signed numbers, those beyond ASCII are below 32 as well. */
        const __m128i fine = _mm_andnot_si128(_mm_cmpeq_epi8(bytes, deleted), _mm_cmpgt_epi8(bytes, below));
        const unsigned found = (unsigned)_mm_movemask_epi8(fine) ^ 0xffff;
        if (found)
            return at + __builtin_ctz(found);
    }
#endif
    while (at < end && *at >= 32 && *at < 127)
        at++;
    return at;
}

/* The end of the line at `at`, or NULL if it has none; `end` is behind the empty line of the head. */
static const unsigned char *
line_end(const unsigned char *at, const unsigned char *end)
{
    const unsigned char *stop = invisible(at, end);
    return end - stop >= 4 && stop[0] == '\r' && stop[1] == '\n' ? stop : NULL;
}

static int
is_head(const unsigned char *text, Py_ssize_t size)
{
    return size >= 4 && memcmp(text + size - 4, "\r\n\r\n", 4) == 0;
}

static PyObject *
as_text(Span span)
{
    PyObject *made = PyUnicode_New(span.stop - span.start, 127);
    if (made != NULL && span.stop > span.start)
        memcpy(PyUnicode_1BYTE_DATA(made), span.start, (size_t)(span.stop - span.start));
    return made;
}

static PyObject *
as_lines(const Span *spans, int count)
{
    Py_ssize_t size = 2 * (count - 1);
    for (int i = 0; i < count; i++)
        size += spans[i].stop - spans[i].start;
    PyObject *made = PyUnicode_New(size, 127);
    if (made == NULL || size == 0)
        return made;
    Py_UCS1 *put = PyUnicode_1BYTE_DATA(made);
    for (int i = 0; i < count; i++) {
        if (i) {
            *put++ = '\r';
            *put++ = '\n';
        }
        const size_t length = (size_t)(spans[i].stop - spans[i].start);
        memcpy(put, spans[i].start, length);
        put += length;
    }
    return made;
}

static const unsigned char *
bytes_of(PyObject *text, Py_ssize_t *size)
{
    char *found;
    return PyBytes_AsStringAndSize(text, &found, size) < 0 ? NULL : (const unsigned char *)found;
}

static PyObject *
lines(PyObject *module, PyObject *text)
{
    Py_ssize_t size;
    const unsigned char *at = bytes_of(text, &size);
    if (at == NULL)
        return NULL;
    if (!is_head(at, size))
        Py_RETURN_NONE;
    const unsigned char *const end = at + size;
    PyObject *found = PyList_New(0);
    while (found != NULL && end - at > 2) {
        const Span line = {at, line_end(at, end)};
        if (line.stop == NULL || PyList_GET_SIZE(found) > MOST_LINES) {
            Py_DECREF(found);
            Py_RETURN_NONE;
        }
        PyObject *made = as_text(line);
        if (made == NULL || PyList_Append(found, made) < 0)
            Py_CLEAR(found);
        Py_XDECREF(made);
        at = line.stop + 2;
    }
    return found;
}

static PyObject *
is_name(PyObject *module, PyObject *name)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
            return NULL;
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    Py_ssize_t at = 0;
    while (at < size && tokens[(unsigned char)text[at]])
        at++;
    return PyBool_FromLong(at > 0 && at == size - 1 && text[at] == ':');
}

/* A name that has a kind; `next` of the same length, or -1. */
typedef struct {
    const char *name;
    Py_ssize_t length;
    int kind, next;
} Known;

typedef struct {
    PyObject *names; /* which keeps the text of each */
    int places;
    int others; /* the kind of all other names */
    int first[LENGTHS + 1];
    Known known[];
} Sorter;

static const char CAPSULE[] = "carpool_sidecar.server.http1.head_lines.Sorter";

static int
kind_of(const Sorter *sorter, const unsigned char *name, Py_ssize_t length)
{
    for (int at = sorter->first[length < LENGTHS ? length : LENGTHS]; at >= 0; at = sorter->known[at].next) {
        const Known *known = &sorter->known[at];
        Py_ssize_t same = 0;
        if (known->length != length)
            continue;
        while (same < length && tokens[name[same]] == (unsigned char)known->name[same])
            same++;
        if (same == length)
            return known->kind;
    }
    return sorter->others;
}

static Span
stripped(const unsigned char *start, const unsigned char *stop)
{
    while (start < stop && *start == ' ')
        start++;
    while (start < stop && stop[-1] == ' ')
        stop--;
    return (Span){start, stop};
}

static PyObject *
sort(PyObject *capsule, PyObject *text)
{
    const Sorter *sorter = PyCapsule_GetPointer(capsule, CAPSULE);
    Py_ssize_t size;
    const unsigned char *at = sorter == NULL ? NULL : bytes_of(text, &size);
    if (at == NULL)
        return NULL;
    if (!is_head(at, size))
        Py_RETURN_NONE;
    const unsigned char *const end = at + size;
    Span matter[MOST_LINES + 1];
    Span first = {at, at};
    if (size > 4 && (first.stop = line_end(at, end)) == NULL)
        Py_RETURN_NONE;
    matter[0] = first;
    int mattering = 1, headers = 0;
    PyObject *found = PyList_New(sorter->places + 1);
    if (found == NULL)
        return NULL;
    for (int i = 0; i <= sorter->places; i++)
        PyList_SET_ITEM(found, i, Py_NewRef(Py_None));
    for (at = first.stop + 2; end - at > 2; headers++) {
        const unsigned char *colon = at;
        while (tokens[*colon]) /* it ends at the head's last byte at the latest */
            colon++;
        if (*colon != ':' || colon == at || headers == MOST_LINES)
            goto none;
        const unsigned char *stop = line_end(colon, end);
        if (stop == NULL)
            goto none;
        const int kind = kind_of(sorter, at, colon - at);
        if (kind == REFUSED)
            goto none;
        if (kind == MATTERS)
            matter[mattering++] = (Span){at, stop};
        if (kind > 0) {
            if (PyList_GET_ITEM(found, kind) != Py_None)
                goto none;
            PyObject *value = as_text(stripped(colon + 1, stop));
            if (value == NULL)
                goto failed;
            Py_DECREF(Py_None);
            PyList_SET_ITEM(found, kind, value);
        }
        at = stop + 2;
    }
    PyObject *mattered = as_lines(matter, mattering);
    if (mattered == NULL)
        goto failed;
    Py_DECREF(Py_None);
    PyList_SET_ITEM(found, 0, mattered);
    return found;
none:
    Py_DECREF(found);
    Py_RETURN_NONE;
failed:
    Py_DECREF(found);
    return NULL;
}

static PyMethodDef sort_method = {"sort", (PyCFunction)sort, METH_O, "See head_lines.py."};

static void
let_go(PyObject *capsule)
{
    Sorter *sorter = PyCapsule_GetPointer(capsule, CAPSULE);
    if (sorter != NULL) {
        Py_DECREF(sorter->names);
        PyMem_Free(sorter);
    }
}

/* Fill in the names and kinds of `items`, a list of pairs; -1 with an error set if they are none. */
static int
learn(Sorter *sorter, PyObject *items)
{
    for (int i = 0; i <= LENGTHS; i++)
        sorter->first[i] = -1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *name, *kind;
        Known *known = &sorter->known[i];
        if (!PyArg_ParseTuple(PyList_GET_ITEM(items, i), "OO", &name, &kind))
            return -1;
        known->name = PyUnicode_AsUTF8AndSize(name, &known->length);
        const long number = PyLong_AsLong(kind);
        if (known->name == NULL || (number == -1 && PyErr_Occurred()))
            return -1;
        if (number < REFUSED || number > sorter->places) {
            PyErr_Format(PyExc_ValueError, "the kinds of headers are %d to %d", REFUSED, sorter->places);
            return -1;
        }
        known->kind = (int)number;
        int *chain = &sorter->first[known->length < LENGTHS ? known->length : LENGTHS];
        known->next = *chain;
        *chain = (int)i;
    }
    return 0;
}

static PyObject *
make_sorter(PyObject *module, PyObject *arguments)
{
    PyObject *kinds;
    int places, others = 0;
    if (!PyArg_ParseTuple(arguments, "O!i|i", &PyDict_Type, &kinds, &places, &others))
        return NULL;
    if (places < 0 || places > MOST_PLACES) {
        PyErr_Format(PyExc_ValueError, "there are 0 to %d places", MOST_PLACES);
        return NULL;
    }
    if (others != MATTERS && others != 0) {
        PyErr_Format(PyExc_ValueError, "other headers are of the kind %d or 0", MATTERS);
        return NULL;
    }
    PyObject *items = PyDict_Items(kinds);
    if (items == NULL)
        return NULL;
    Sorter *sorter = PyMem_Malloc(sizeof(Sorter) + (size_t)PyList_GET_SIZE(items) * sizeof(Known));
    if (sorter == NULL) {
        Py_DECREF(items);
        return PyErr_NoMemory();
    }
    sorter->names = items;
    sorter->places = places;
    sorter->others = others;
    PyObject *capsule = learn(sorter, items) < 0 ? NULL : PyCapsule_New(sorter, CAPSULE, let_go);
    if (capsule == NULL) {
        Py_DECREF(items);
        PyMem_Free(sorter);
        return NULL;
    }
    PyObject *made = PyCFunction_New(&sort_method, capsule);
    Py_DECREF(capsule);
    return made;
}

static PyMethodDef methods[] = {
    {"lines", (PyCFunction)lines, METH_O, "See head_lines.py."},
    {"is_name", (PyCFunction)is_name, METH_O, "See head_lines.py."},
    {"sorter", (PyCFunction)make_sorter, METH_VARARGS, "See head_lines.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "head_lines", .m_doc = "See head_lines.py.", .m_methods = methods,
};

PyMODINIT_FUNC
PyInit_head_lines(void)
{
    fill_tokens();
    return PyModuleDef_Init(&definition);
}
