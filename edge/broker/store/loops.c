/*
 * Loops over the messages of a commit: number them, pack them into a segment, and skip those that no subscription has to
 * inspect. `loops.py` documents each function.
 *
 * The interpreter lock is held throughout. Reading an attribute or creating an object may run Python code that changes any
 * list or dictionary. So objects that are used later are held by a reference, and lists of bodies are copied first.
 */
#include "../../../bridge/native.h"

static PyObject *ADDRESS, *DEVICE, *FLAGS, *PROPERTIES, *BODIES, *RECEIVED_AT;

static PyObject *item(PyObject *row, Py_ssize_t place)
{
    return row ? PyTuple_GetItem(row, place) : NULL;
}

/* Put a new reference to `object` into a new tuple. */
static bool put_item(PyObject *tuple, Py_ssize_t place, PyObject *object)
{
    return !PyTuple_SetItem(tuple, place, keep(object));
}

/* Return (first, second, third) as `kind`, a subclass of tuple without state of its own. This avoids the two extra objects
 * that `tuple.__new__` needs. */
static PyObject *named_tuple(PyObject *kind, PyObject *first, PyObject *second, PyObject *third)
{
    PyObject *made = PyType_GenericAlloc((PyTypeObject *)kind, 3);
    if (made && put_item(made, 0, first) && put_item(made, 1, second) && put_item(made, 2, third))
        return made;
    Py_XDECREF(made);
    return NULL;
}

/* Return (log, stored) and take over the reference to `stored`. */
static PyObject *log_entry(PyObject *log, PyObject *stored)
{
    PyObject *made = stored ? PyTuple_New(2) : NULL;
    if (made && put_item(made, 0, log) && !PyTuple_SetItem(made, 1, stored))
        return made;
    Py_XDECREF(made ? made : stored);
    return NULL;
}

static void release(PyObject **objects, size_t count)
{
    for (size_t i = 0; i < count; i++)
        Py_XDECREF(objects[i]);
}

/* Read a non-negative number. Return false with an error if it is not a number or too large. */
static bool unsigned_integer(PyObject *number, uint64_t *value)
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

/* Append a run with its position and sequence, and advance both by its messages. Return 1, or -1 on an error. */
static int append_numbered(PyObject *log, PyObject *run, PyObject *address, PyObject *position, PyObject *sequence,
                           Py_ssize_t messages, PyObject *const *arguments)
{
    PyObject *ends = arguments[3], *sequences = arguments[4], *appended = arguments[5], *stored_type = arguments[6];
    int64_t first, number;
    if (messages < 0 || !integer(position, &first) || !integer(sequence, &number))
        return -1;
    if (__builtin_add_overflow(first, messages, &first) || __builtin_add_overflow(number, messages, &number)) {
        PyErr_SetString(PyExc_OverflowError, "a position or a sequence is beyond 63 bits");
        return -1;
    }
    PyObject *end = PyLong_FromLongLong(first), *following = PyLong_FromLongLong(number);
    PyObject *stored = end && following ? named_tuple(stored_type, position, sequence, run) : NULL;
    PyObject *noted = log_entry(log, stored);
    bool done = noted && !PyList_Append(appended, noted) && !PyDict_SetItem(ends, log, end) &&
                !PyDict_SetItem(sequences, address, following);
    release((PyObject *[]){noted, end, following}, 3);
    return done ? 1 : -1;
}

/* Number one run. Return 1, 0 if its log or address is unknown, or -1 on an error. */
static int number_run(PyObject *row, PyObject *const *arguments)
{
    PyObject *known = arguments[2], *ends = arguments[3], *sequences = arguments[4];
    PyObject *log = item(row, 0), *run = log ? item(row, 1) : NULL, *address = field(run, ADDRESS);
    PyObject *bodies = address ? field(run, BODIES) : NULL;
    PyObject *position = bodies ? keep(PyDict_GetItemWithError(ends, log)) : NULL;
    PyObject *sequence = position ? keep(PyDict_GetItemWithError(sequences, address)) : NULL;
    if (position && !sequence && !PyErr_Occurred())
        sequence = keep(PyDict_GetItemWithError(known, address));
    int done = PyErr_Occurred() ? -1 : 0;
    if (sequence)
        done = append_numbered(log, run, address, position, sequence, PyList_Size(bodies), arguments);
    release((PyObject *[]){address, bodies, position, sequence}, 4);
    return done;
}

/* number_runs(runs, start, known, ends, sequences, appended, Stored) -> index where it stopped */
static PyObject *number(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("number_runs", arguments, count, "lidddlc"))
        return NULL;
    PyObject *runs = arguments[0];
    Py_ssize_t at = PyLong_AsSsize_t(arguments[1]), end = PyList_Size(runs);
    int done = PyErr_Occurred() ? -1 : 1;
    for (; done > 0 && at < end; at += done > 0) {
        PyObject *row = listed(runs, at);
        done = row ? number_run(row, arguments) : -1;
        Py_XDECREF(row);
    }
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

/* The packed parts of a run. It owns the objects that it points to. */
struct part {
    PyObject *address, *device, *properties, *bodies; /* the last: a tuple */
    const char *texts[3];                             /* address, device, properties */
    Py_ssize_t sizes[3], count;
    uint64_t flags, sequence, offset;
    int64_t received_at;
};

/* Total sizes of the runs of a segment. */
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

/* Read the numbers of a run. Return false with an error if one does not fit. */
static bool read_numbers(PyObject *stored, PyObject *run, int64_t base, struct part *part)
{
    PyObject *flags = field(run, FLAGS), *received_at = flags ? field(run, RECEIVED_AT) : NULL;
    int64_t position = 0;
    bool fine = received_at && unsigned_integer(flags, &part->flags) && integer(received_at, &part->received_at) &&
                unsigned_integer(item(stored, 1), &part->sequence) && integer(item(stored, 0), &position);
    part->offset = base < 0 ? 0 : (uint64_t)position - (uint64_t)base;
    release((PyObject *[]){flags, received_at}, 2);
    return fine && fits(part->flags, UINT16_MAX) && fits(part->offset, UINT32_MAX);
}

/* Read the texts of a run, and copy its list of bodies. Return false with an error if one does not fit. */
static bool read_texts(PyObject *run, struct part *part)
{
    char *properties;
    PyObject *bodies = field(run, BODIES);
    part->address = field(run, ADDRESS), part->device = field(run, DEVICE), part->properties = field(run, PROPERTIES);
    part->bodies = bodies && !PyErr_Occurred() ? PyList_AsTuple(bodies) : NULL;
    Py_XDECREF(bodies);
    if (!part->bodies || !(part->texts[0] = PyUnicode_AsUTF8AndSize(part->address, &part->sizes[0])) ||
        !(part->texts[1] = PyUnicode_AsUTF8AndSize(part->device, &part->sizes[1])) ||
        PyBytes_AsStringAndSize(part->properties, &properties, &part->sizes[2]))
        return false;
    part->texts[2] = properties, part->count = PyTuple_Size(part->bodies);
    return fits((uint64_t)part->sizes[0], UINT16_MAX) && fits((uint64_t)part->sizes[1], UINT16_MAX) &&
           fits((uint64_t)part->sizes[2], UINT32_MAX) && fits((uint64_t)part->count, UINT32_MAX);
}

/* Read one run and add its sizes. Return false with an error if it cannot be packed. */
static bool read_part(PyObject *stored, int64_t base, struct part *part, struct sizes *sizes)
{
    PyObject *run = item(stored, 2);
    if (!run || !read_texts(run, part) || !read_numbers(stored, run, base, part))
        return false;
    for (Py_ssize_t i = 0; i < part->count; i++) {
        char *body;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(part->bodies, i), &body, &size))
            return false;
        sizes->bodies += (size_t)size;
        if ((size_t)size > sizes->longest)
            sizes->longest = (size_t)size;
    }
    sizes->messages += (size_t)part->count;
    sizes->names += (size_t)(part->sizes[0] + part->sizes[1] + part->sizes[2]);
    return fits(sizes->longest, UINT32_MAX);
}

/* Write the segment. */
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
            PyBytes_AsStringAndSize(PyTuple_GetItem(part->bodies, i), &body, &size);
            __builtin_memcpy(bodies, body, (size_t)size);
            lengths = put(lengths, (uint64_t)size, width), bodies += size;
        }
    }
}

/* pack_runs(stored runs, base) -> (data, messages, bytes of bodies) */
static PyObject *pack(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("pack_runs", arguments, count, "li"))
        return NULL;
    Py_ssize_t runs = PyList_Size(arguments[0]);
    int64_t base = PyLong_AsLongLong(arguments[1]);
    struct part *parts = PyErr_Occurred() ? NULL : PyMem_Calloc((size_t)runs + 1, sizeof *parts);
    if (!parts)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    struct sizes sizes = {0, 0, 0, 0};
    bool fine = fits((uint64_t)runs, UINT32_MAX);
    for (Py_ssize_t i = 0; fine && i < runs; i++) {
        PyObject *stored = listed(arguments[0], i);
        fine = stored && read_part(stored, base, parts + i, &sizes);
        Py_XDECREF(stored);
    }
    int width = sizes.longest < 0x100 ? 1 : sizes.longest < 0x10000 ? 2 : 4;
    size_t size = PREAMBLE_BYTES + (size_t)runs * (base < 0 ? RUN_BYTES : SPARSE_RUN_BYTES) + sizes.names +
                  sizes.messages * (size_t)width + sizes.bodies;
    PyObject *data = fine ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size) : NULL;
    if (data)
        write_parts((uint8_t *)PyBytes_AsString(data), parts, (size_t)runs, &sizes, width, base >= 0);
    for (Py_ssize_t i = 0; i < runs; i++)
        release((PyObject *[]){parts[i].address, parts[i].device, parts[i].properties, parts[i].bodies}, 4);
    PyMem_Free(parts);
    return data ? Py_BuildValue("(Nnn)", data, (Py_ssize_t)sizes.messages, (Py_ssize_t)sizes.bodies) : NULL;
}

/* --- skipping ---------------------------------------------------------------------------------------------------- */

/* Skip one run and advance `place`. Return 1, 0 if the run must not be skipped, or -1 on an error. */
static int pass_run(PyObject *row, int64_t log, int64_t *place)
{
    PyObject *stored = item(row, 1), *run = stored ? item(stored, 2) : NULL, *properties = field(run, PROPERTIES);
    PyObject *bodies = properties ? field(run, BODIES) : NULL;
    char *bytes;
    Py_ssize_t size, messages = bodies ? PyList_Size(bodies) : -1;
    int64_t its_log, position;
    int passed = -1;
    if (messages >= 0 && !PyBytes_AsStringAndSize(properties, &bytes, &size) && integer(item(row, 0), &its_log) &&
        integer(item(stored, 0), &position))
        passed = !size && its_log == log && position == *place;
    if (passed > 0)
        *place += messages;
    release((PyObject *[]){properties, bodies}, 2);
    return passed;
}

/* pass_over(appended, start, log, place) -> (index in the list, position in the log) after the skipped runs */
static PyObject *pass_over(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    int64_t log, place;
    if (!takes("pass_over", arguments, count, "liii") || !integer(arguments[2], &log) || !integer(arguments[3], &place))
        return NULL;
    Py_ssize_t at = PyLong_AsSsize_t(arguments[1]);
    int passed = PyErr_Occurred() ? -1 : 1;
    while (passed > 0 && at < PyList_Size(arguments[0])) {
        PyObject *row = listed(arguments[0], at);
        passed = row ? pass_run(row, log, &place) : -1;
        Py_XDECREF(row);
        at += passed > 0;
    }
    return passed < 0 ? NULL : Py_BuildValue("(nL)", at, (long long)place);
}

static PyMethodDef functions[] = {
    FUNCTION("number_runs", number),
    FUNCTION("pack_runs", pack),
    FUNCTION("pass_over", pass_over),
    {NULL, NULL, 0, NULL},
};

int add_store_loops(PyObject *module)
{
    static const struct name names[] = {
        {&ADDRESS, "address"},       {&DEVICE, "device"}, {&FLAGS, "flags"},
        {&PROPERTIES, "properties"}, {&BODIES, "bodies"}, {&RECEIVED_AT, "received_at"},
    };
    if (!intern(names, sizeof names / sizeof *names))
        return -1;
    return PyModule_AddFunctions(module, functions);
}
