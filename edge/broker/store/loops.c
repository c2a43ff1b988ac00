/*
 * The loops over the messages of a commit: numbering them, packing them into a segment, and passing over what nobody has
 * to be told of. `loops.py` has the same in Python, and says what each of them does.
 *
 * The interpreter lock is held throughout.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../../../bridge/stable_interface.h"

static PyObject *ADDRESS, *DEVICE, *FLAGS, *PROPERTIES, *BODIES, *RECEIVED_AT;

/* What `object` has under this name, as long as `object` is there and is not changed; NULL with an error. */
static PyObject *field(PyObject *object, PyObject *name)
{
    PyObject *found = object ? PyObject_GetAttr(object, name) : NULL;
    Py_DecRef(found);
    return found;
}

static PyObject *item(PyObject *row, Py_ssize_t place)
{
    return row ? PyTuple_GetItem(row, place) : NULL;
}

/* Put `object` into a new tuple, as well. */
static bool put_item(PyObject *tuple, Py_ssize_t place, PyObject *object)
{
    Py_IncRef(object);
    return !PyTuple_SetItem(tuple, place, object);
}

/* (first, second, third) as `kind`, which is a class of tuples and nothing besides: `tuple.__new__` takes two more to
 * make it of. */
static PyObject *named_tuple(PyObject *kind, PyObject *first, PyObject *second, PyObject *third)
{
    PyObject *made = PyType_GenericAlloc((PyTypeObject *)kind, 3);
    if (made && put_item(made, 0, first) && put_item(made, 1, second) && put_item(made, 2, third))
        return made;
    Py_DecRef(made);
    return NULL;
}

/* (log, stored); takes `stored`. */
static PyObject *noted_by(PyObject *log, PyObject *stored)
{
    PyObject *made = stored ? PyTuple_New(2) : NULL;
    if (made && put_item(made, 0, log) && !PyTuple_SetItem(made, 1, stored))
        return made;
    Py_DecRef(made ? made : stored);
    return NULL;
}

/* The value of a number; false with an error where it is none, or too large. */
static bool whole(PyObject *number, uint64_t *value)
{
    *value = PyLong_AsUnsignedLongLong(number);
    return *value != UINT64_MAX || !PyErr_Occurred();
}

static bool integer(PyObject *number, int64_t *value)
{
    *value = PyLong_AsLongLong(number);
    return *value != -1 || !PyErr_Occurred();
}

/* --- numbering --------------------------------------------------------------------------------------------------- */

/* One run: 1 where it was numbered, 0 where its log or its address is not known, -1 on an error. */
static int number_run(PyObject *row, PyObject *known, PyObject *ends, PyObject *sequences, PyObject *appended,
                      PyObject *stored_type)
{
    PyObject *log = item(row, 0), *run = log ? item(row, 1) : NULL, *address = field(run, ADDRESS);
    PyObject *bodies = address ? field(run, BODIES) : NULL;
    PyObject *position = bodies ? PyDict_GetItemWithError(ends, log) : NULL;
    PyObject *sequence = position ? PyDict_GetItemWithError(sequences, address) : NULL;
    if (position && !sequence && !PyErr_Occurred())
        sequence = PyDict_GetItemWithError(known, address);
    if (!position || !sequence)
        return PyErr_Occurred() ? -1 : 0;
    int64_t first, number;
    if (!integer(position, &first) || !integer(sequence, &number) || PyList_Size(bodies) < 0)
        return -1;
    PyObject *end = PyLong_FromLongLong(first + PyList_Size(bodies));
    PyObject *following = end ? PyLong_FromLongLong(number + PyList_Size(bodies)) : NULL;
    PyObject *stored = following ? named_tuple(stored_type, position, sequence, run) : NULL;
    PyObject *noted = noted_by(log, stored);
    bool done = noted && !PyList_Append(appended, noted) && !PyDict_SetItem(ends, log, end) &&
                !PyDict_SetItem(sequences, address, following);
    Py_DecRef(noted);
    Py_DecRef(end);
    Py_DecRef(following);
    return done ? 1 : -1;
}

static PyObject *number(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    PyObject *runs = arguments[0];
    Py_ssize_t at = (Py_ssize_t)PyLong_AsLongLong(arguments[1]), end = PyList_Size(runs);
    int done = PyErr_Occurred() ? -1 : 1;
    for (; done > 0 && at < end; at += done > 0)
        done = number_run(PyList_GetItem(runs, at), arguments[2], arguments[3], arguments[4], arguments[5], arguments[6]);
    return done < 0 ? NULL : PyLong_FromSsize_t(at);
}

/* --- packing ----------------------------------------------------------------------------------------------------- */

enum {
    PLAIN = 1,
    SPARSE = 2, /* segment.VERSION and segment.SPARSE */
    PREAMBLE_BYTES = 6,
    RUN_BYTES = 30,
    SPARSE_RUN_BYTES = 34,
};

/* A run as far as it is packed; what it points to is its own. */
struct part {
    const char *texts[3]; /* address, device, properties */
    Py_ssize_t sizes[3];
    uint64_t flags, sequence, offset;
    int64_t received_at;
    PyObject *bodies;
    Py_ssize_t count;
};

/* What all runs of a segment take. */
struct sizes {
    size_t names, bodies, longest, messages;
};

static uint8_t *put(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++, value >>= 8)
        *to++ = (uint8_t)value;
    return to;
}

static bool fits(uint64_t value, uint64_t most)
{
    if (value > most)
        PyErr_SetString(PyExc_OverflowError, "a number does not fit into a segment");
    return value <= most;
}

/* False with an error where it cannot be packed. */
static bool read_part(PyObject *stored, int64_t base, struct part *part, struct sizes *sizes)
{
    PyObject *run = item(stored, 2);
    PyObject *address = field(run, ADDRESS), *device = address ? field(run, DEVICE) : NULL;
    PyObject *properties = device ? field(run, PROPERTIES) : NULL, *flags = properties ? field(run, FLAGS) : NULL;
    PyObject *received_at = flags ? field(run, RECEIVED_AT) : NULL;
    char *property_bytes;
    part->bodies = received_at ? field(run, BODIES) : NULL;
    if (!part->bodies || !(part->texts[0] = PyUnicode_AsUTF8AndSize(address, &part->sizes[0])) ||
        !(part->texts[1] = PyUnicode_AsUTF8AndSize(device, &part->sizes[1])) ||
        PyBytes_AsStringAndSize(properties, &property_bytes, &part->sizes[2]))
        return false;
    part->texts[2] = property_bytes;
    int64_t position = 0;
    if (!whole(flags, &part->flags) || !integer(received_at, &part->received_at) ||
        !whole(item(stored, 1), &part->sequence) || !integer(item(stored, 0), &position))
        return false;
    part->offset = base < 0 ? 0 : (uint64_t)(position - base);
    part->count = PyList_Size(part->bodies);
    if (part->count < 0 || !fits((uint64_t)part->sizes[0], UINT16_MAX) || !fits((uint64_t)part->sizes[1], UINT16_MAX) ||
        !fits((uint64_t)part->sizes[2], UINT32_MAX) || !fits(part->flags, UINT16_MAX) ||
        !fits((uint64_t)part->count, UINT32_MAX) || !fits(part->offset, UINT32_MAX))
        return false;
    for (Py_ssize_t i = 0; i < part->count; i++) {
        char *body;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GetItem(part->bodies, i), &body, &size))
            return false;
        sizes->bodies += (size_t)size;
        if ((size_t)size > sizes->longest)
            sizes->longest = (size_t)size;
    }
    sizes->messages += (size_t)part->count;
    sizes->names += (size_t)(part->sizes[0] + part->sizes[1] + part->sizes[2]);
    return fits(sizes->longest, UINT32_MAX);
}

/* Writes the segment; nothing is called that may change what it reads. */
static void write_parts(uint8_t *to, const struct part *parts, size_t runs, const struct sizes *sizes, int width, bool sparse)
{
    uint8_t *names = to + PREAMBLE_BYTES + runs * (sparse ? SPARSE_RUN_BYTES : RUN_BYTES);
    uint8_t *lengths = names + sizes->names, *bodies = lengths + sizes->messages * (size_t)width;
    to = put(put(put(to, sparse ? SPARSE : PLAIN, 1), (uint64_t)width, 1), runs, 4);
    for (const struct part *part = parts; part < parts + runs; part++) {
        to = put(put(put(to, (uint64_t)part->sizes[0], 2), (uint64_t)part->sizes[1], 2), (uint64_t)part->sizes[2], 4);
        to = put(put(to, part->flags, 2), (uint64_t)part->count, 4);
        to = put(put(to, (uint64_t)part->received_at, 8), part->sequence, 8);
        to = sparse ? put(to, part->offset, 4) : to;
        for (int i = 0; i < 3; names += part->sizes[i++])
            __builtin_memcpy(names, part->texts[i], (size_t)part->sizes[i]);
        for (Py_ssize_t i = 0; i < part->count; i++) {
            char *body;
            Py_ssize_t size;
            PyBytes_AsStringAndSize(PyList_GetItem(part->bodies, i), &body, &size);
            __builtin_memcpy(bodies, body, (size_t)size);
            lengths = put(lengths, (uint64_t)size, width), bodies += size;
        }
    }
}

static PyObject *pack(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    Py_ssize_t runs = PyList_Size(arguments[0]);
    int64_t base = PyLong_AsLongLong(arguments[1]);
    struct part *parts = PyErr_Occurred() ? NULL : PyMem_Malloc(((size_t)runs + 1) * sizeof *parts);
    if (!parts)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    struct sizes sizes = {0, 0, 0, 0};
    bool fine = fits((uint64_t)runs, UINT32_MAX);
    for (Py_ssize_t i = 0; fine && i < runs; i++)
        fine = read_part(PyList_GetItem(arguments[0], i), base, parts + i, &sizes);
    int width = sizes.longest < 0x100 ? 1 : sizes.longest < 0x10000 ? 2 : 4;
    size_t size = PREAMBLE_BYTES + (size_t)runs * (base < 0 ? RUN_BYTES : SPARSE_RUN_BYTES) + sizes.names +
                  sizes.messages * (size_t)width + sizes.bodies;
    PyObject *data = fine ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size) : NULL;
    if (data)
        write_parts((uint8_t *)PyBytes_AsString(data), parts, (size_t)runs, &sizes, width, base >= 0);
    PyMem_Free(parts);
    return data ? Py_BuildValue("(Nnn)", data, (Py_ssize_t)sizes.messages, (Py_ssize_t)sizes.bodies) : NULL;
}

/* --- passing over ------------------------------------------------------------------------------------------------ */

static PyObject *pass_over(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    PyObject *appended = arguments[0], *row;
    int64_t at, log, place, its_log, position;
    Py_ssize_t end = PyList_Size(appended), size;
    if (end < 0 || !integer(arguments[1], &at) || !integer(arguments[2], &log) || !integer(arguments[3], &place))
        return NULL;
    for (; at < end; at++) {
        row = PyList_GetItem(appended, (Py_ssize_t)at);
        PyObject *stored = item(row, 1), *run = item(stored, 2), *properties = field(run, PROPERTIES);
        PyObject *bodies = properties ? field(run, BODIES) : NULL;
        char *bytes;
        if (!bodies || PyBytes_AsStringAndSize(properties, &bytes, &size) || !integer(item(row, 0), &its_log) ||
            !integer(item(stored, 0), &position))
            return NULL;
        if (size || its_log != log || position != place)
            break;
        place += PyList_Size(bodies);
    }
    return Py_BuildValue("(LL)", (long long)at, (long long)place);
}

static PyMethodDef methods[] = {
    {"number", number, METH_FASTCALL, NULL},
    {"pack", pack, METH_FASTCALL, NULL},
    {"pass_over", pass_over, METH_FASTCALL, NULL},
};
enum { METHODS = sizeof methods / sizeof *methods };

/* Every function, in a tuple in the order of `methods`. */
PyObject *waypost_store_loops(void)
{
    PyObject *tuple = PyTuple_New(METHODS);
    ADDRESS = PyUnicode_InternFromString("address"), DEVICE = PyUnicode_InternFromString("device");
    FLAGS = PyUnicode_InternFromString("flags"), PROPERTIES = PyUnicode_InternFromString("properties");
    BODIES = PyUnicode_InternFromString("bodies"), RECEIVED_AT = PyUnicode_InternFromString("received_at");
    for (int i = 0; tuple && i < METHODS; i++) {
        PyObject *function = PyCFunction_NewEx(&methods[i], NULL, NULL);
        if (!function || PyTuple_SetItem(tuple, i, function)) {
            Py_DecRef(tuple);
            tuple = NULL;
        }
    }
    return tuple;
}
