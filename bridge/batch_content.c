/*
 * Read the content of a batch from its two decompressed sections. `bridge.batch` documents their layout,
 * `batch_content.py` the result. The first fault found raises a ValueError.
 *
 * The GIL is held throughout. Sizes are limited by those of a batch, so their sums fit into 64 bits.
 */
#include "native.h"

enum { SEQUENCE_BITS = 63, U32 = 4, U64 = 8 };
static const uint64_t SEQUENCE_MAX = ((uint64_t)1 << SEQUENCE_BITS) - 1;

/* Reader of a section from front to back; `fine` is false after a read beyond its end. */
struct section {
    const uint8_t *at, *end;
    bool fine;
};

/* An integer column: the lowest bytes of all entries, then the second bytes, ... */
struct column {
    const uint8_t *bytes;
    size_t entries;
    int width;
};

static const uint8_t *take(struct section *section, uint64_t size)
{
    section->fine = section->fine && (uint64_t)(section->end - section->at) >= size;
    const uint8_t *taken = section->at;
    section->at += section->fine ? size : 0;
    return taken;
}

static struct column take_column(struct section *section, size_t entries, int width)
{
    section->fine = section->fine && entries <= (size_t)(section->end - section->at) / (size_t)width;
    entries = section->fine ? entries : 0;
    return (struct column){take(section, entries * (size_t)width), entries, width};
}

/* Set a ValueError unless there is an error already. Return NULL. */
static PyObject *wrong(const char *why)
{
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, why);
    return NULL;
}

/* Return true at the end of a section; otherwise set an error. */
static bool is_at_end(const struct section *section)
{
    if (section->fine && section->at != section->end)
        wrong("a section has bytes after its end");
    return section->fine && section->at == section->end;
}

static uint64_t entry(const struct column *column, size_t place)
{
    uint64_t value = 0;
    for (int plane = column->width; plane-- > 0;)
        value = value << 8 | column->bytes[(size_t)plane * column->entries + place];
    return value;
}

static size_t take_count(struct section *section)
{
    const uint8_t *bytes = take(section, U32);
    return section->fine ? bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16 | (size_t)bytes[3] << 24 : 0;
}

static PyObject *text(const uint8_t *bytes, Py_ssize_t size)
{
    return PyUnicode_FromStringAndSize((const char *)bytes, size);
}

static PyObject *binary(const uint8_t *bytes, Py_ssize_t size)
{
    return PyBytes_FromStringAndSize((const char *)bytes, size);
}

/* Set an item of a new list to `object`, which may be NULL with an error. */
static bool put(PyObject *list, size_t place, PyObject *object)
{
    return object && !PyList_SetItem(list, (Py_ssize_t)place, object);
}

/* Return a list of objects made from consecutive entries; `longest` gets the bytes of the longest. */
static PyObject *take_each(struct section *section, const struct column *lengths,
                           PyObject *(*made)(const uint8_t *, Py_ssize_t), uint64_t *longest)
{
    uint64_t size = 0;
    *longest = 0;
    for (size_t i = 0; section->fine && i < lengths->entries; i++) {
        uint64_t length = entry(lengths, i);
        size += length;
        *longest = length > *longest ? length : *longest;
    }
    const uint8_t *bytes = take(section, size);
    PyObject *list = section->fine ? PyList_New((Py_ssize_t)lengths->entries) : wrong("a section ends early");
    for (size_t i = 0; list && i < lengths->entries; i++) {
        Py_ssize_t length = (Py_ssize_t)entry(lengths, i);
        if (!put(list, i, made(bytes, length))) {
            Py_XDECREF(list);
            return NULL;
        }
        bytes += length;
    }
    return list;
}

/* Read a dictionary of a batch: the number of entries (at most `most`), their lengths, the entries. */
static PyObject *take_dictionary(struct section *section, size_t most,
                                 PyObject *(*made)(const uint8_t *, Py_ssize_t), uint64_t *longest)
{
    size_t entries = take_count(section);
    if (section->fine && entries > most)
        return wrong("a dictionary has more entries than there are runs");
    struct column lengths = take_column(section, entries, U32);
    return take_each(section, &lengths, made, longest);
}

/* Return a list of the entries of `dictionary` that the column refers to. */
static PyObject *look_up(PyObject *dictionary, const struct column *indexes)
{
    size_t size = (size_t)PyList_Size(dictionary);
    for (size_t i = 0; i < indexes->entries; i++)
        if (entry(indexes, i) >= size)
            return wrong("an index points outside its dictionary");
    PyObject *list = PyList_New((Py_ssize_t)indexes->entries);
    for (size_t i = 0; list && i < indexes->entries; i++) {
        PyObject *one = PyList_GetItem(dictionary, (Py_ssize_t)entry(indexes, i));
        Py_XINCREF(one);
        if (!put(list, i, one)) {
            Py_XDECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *whole_numbers(const struct column *column)
{
    PyObject *list = PyList_New((Py_ssize_t)column->entries);
    for (size_t i = 0; list && i < column->entries; i++)
        if (!put(list, i, PyLong_FromUnsignedLongLong(entry(column, i)))) {
            Py_XDECREF(list);
            return NULL;
        }
    return list;
}

/* Return a list of times from a column of differences. */
static PyObject *times(const struct column *differences)
{
    int64_t time = 0;
    PyObject *list = PyList_New((Py_ssize_t)differences->entries);
    for (size_t i = 0; list && i < differences->entries; i++)
        if (__builtin_add_overflow(time, (int64_t)entry(differences, i), &time) || time < 0 ||
            !put(list, i, PyLong_FromLongLong(time))) {
            Py_XDECREF(list);
            return wrong("a received-at is outside 63 bits");
        }
    return list;
}

/* Every entry is at least 1, and their sum is `total`. */
static bool adds_up(const struct column *column, uint64_t total)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < column->entries; i++) {
        uint64_t value = entry(column, i);
        if (!value)
            return false;
        sum += value;
    }
    return sum == total;
}

/* Every range ends at the end of a run. Both columns must have the same sum. */
static bool end_together(const struct column *runs, const struct column *ranges)
{
    uint64_t end = 0, reached = 0;
    size_t run = 0;
    for (size_t i = 0; i < ranges->entries; i++) {
        end += entry(ranges, i);
        while (reached < end)
            reached += entry(runs, run++);
        if (reached != end)
            return false;
    }
    return true;
}

/* --- the two sections --------------------------------------------------------------------------------------------- */

static PyObject *range_of(PyObject *kind, PyObject *address, uint64_t base, uint64_t first, uint64_t count)
{
    PyObject *numbers = Py_BuildValue("KKK", (unsigned long long)base, (unsigned long long)first,
                                      (unsigned long long)count);
    PyObject *made = numbers ? PyObject_CallFunctionObjArgs(kind, address, PyTuple_GetItem(numbers, 0),
                                                            PyTuple_GetItem(numbers, 1), PyTuple_GetItem(numbers, 2), NULL)
                             : NULL;
    Py_XDECREF(numbers);
    return made;
}

/* Return a list of the ranges; `counts` gets their numbers of messages, `longest` the bytes of the longest address. */
static PyObject *read_table(struct section *table, size_t ranges, uint64_t messages, PyObject *kind,
                            struct column *counts, uint64_t *longest)
{
    struct column lengths = take_column(table, ranges, U32), bases = take_column(table, ranges, U64);
    struct column firsts = take_column(table, ranges, U64);
    *counts = take_column(table, ranges, U32);
    PyObject *addresses = take_each(table, &lengths, text, longest), *list = NULL;
    bool fine = addresses && is_at_end(table);
    if (fine && !adds_up(counts, messages)) {
        wrong("the ranges do not add up to the messages");
        fine = false;
    }
    for (size_t i = 0; fine && i < ranges; i++)
        if (entry(&bases, i) > entry(&firsts, i) || entry(&firsts, i) > SEQUENCE_MAX - entry(counts, i)) {
            wrong("a range begins before its base or ends beyond 63 bits");
            fine = false;
        }
    list = fine ? PyList_New((Py_ssize_t)ranges) : NULL;
    for (size_t i = 0; list && i < ranges; i++) {
        PyObject *address = PyList_GetItem(addresses, (Py_ssize_t)i);
        if (!put(list, i, range_of(kind, address, entry(&bases, i), entry(&firsts, i), entry(counts, i)))) {
            Py_XDECREF(list);
            list = NULL;
        }
    }
    Py_XDECREF(addresses);
    return list;
}

/* Return a tuple of `ranges` and the columns of runs and messages; its last entry is the bytes of the longest address,
 * device and properties together. */
static PyObject *read_columns(struct section *columns, PyObject *ranges, const struct column *counts, uint64_t messages,
                              uint64_t longest_address)
{
    uint64_t longest_device = 0, longest_property = 0, longest_body;
    size_t runs = take_count(columns);
    if (columns->fine && (runs < counts->entries || runs > messages))
        return wrong("there are fewer runs than ranges, or more than messages");
    PyObject *devices = take_dictionary(columns, runs, text, &longest_device);
    PyObject *properties = devices ? take_dictionary(columns, runs, binary, &longest_property) : NULL;
    columns->fine = columns->fine && properties;
    struct column lengths = take_column(columns, runs, U32), device = take_column(columns, runs, U32);
    struct column property = take_column(columns, runs, U32), received = take_column(columns, runs, U64);
    const uint8_t *flags = take(columns, runs);
    struct column sizes = take_column(columns, messages, U32);
    bool fine = columns->fine || wrong("a section ends early");
    if (fine && !adds_up(&lengths, messages))
        fine = wrong("the runs do not add up to the messages");
    if (fine && !end_together(&lengths, counts))
        fine = wrong("a run crosses the end of a range");
    PyObject *bodies = fine ? take_each(columns, &sizes, binary, &longest_body) : NULL;
    fine = bodies && is_at_end(columns);
    PyObject *of_device = fine ? look_up(devices, &device) : NULL;
    PyObject *of_property = of_device ? look_up(properties, &property) : NULL;
    PyObject *received_at = of_property ? times(&received) : NULL;
    PyObject *run_lengths = received_at ? whole_numbers(&lengths) : NULL, *made = NULL;
    if (run_lengths)
        made = Py_BuildValue("OOOONOOK", ranges, run_lengths, of_device, received_at, binary(flags, (Py_ssize_t)runs),
                             of_property, bodies,
                             (unsigned long long)(longest_address + longest_device + longest_property));
    PyObject *parts[] = {devices, properties, bodies, of_device, of_property, received_at, run_lengths};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        Py_XDECREF(parts[i]);
    return made;
}

/* read_batch(table, columns, ranges, messages, AddressRange) -> fields of a `BatchContent`. Raises ValueError. */
static PyObject *read_batch(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("read_batch", arguments, count, "bbiiO"))
        return NULL;
    char *bytes[2];
    Py_ssize_t sizes[2];
    if (PyBytes_AsStringAndSize(arguments[0], &bytes[0], &sizes[0]) ||
        PyBytes_AsStringAndSize(arguments[1], &bytes[1], &sizes[1]))
        return NULL;
    unsigned long long ranges = PyLong_AsUnsignedLongLong(arguments[2]);
    unsigned long long messages = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(arguments[3]);
    if (PyErr_Occurred())
        return NULL;
    struct section table = {(uint8_t *)bytes[0], (uint8_t *)bytes[0] + sizes[0], true};
    struct section columns = {(uint8_t *)bytes[1], (uint8_t *)bytes[1] + sizes[1], true};
    struct column counts;
    uint64_t longest;
    PyObject *of_table = read_table(&table, (size_t)ranges, messages, arguments[4], &counts, &longest);
    PyObject *made = of_table ? read_columns(&columns, of_table, &counts, messages, longest) : NULL;
    Py_XDECREF(of_table);
    return made;
}

static PyMethodDef functions[] = {
    FUNCTION("read_batch", read_batch),
    {NULL, NULL, 0, NULL},
};

int add_batch_content(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
