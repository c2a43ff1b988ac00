/*
 * Receive from many sockets, or send to many, in one call. The GIL is released once for all of them: releasing it for
 * each socket would give it to another thread each time.
 */
#include "../native.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/types.h>

enum {
    SOCKETS_MAX = 64, /* sockets of one call */
    SOCKETS_FEW = 8,  /* fewer sockets are served with the GIL held: getting it back may take longer */
};

/* Read the descriptors of a list, at most `SOCKETS_MAX`. Return their number; -1 with an error. */
static Py_ssize_t read_descriptors(PyObject *list, int *descriptors)
{
    Py_ssize_t count = PyList_Size(list);
    if (count > SOCKETS_MAX) {
        PyErr_Format(PyExc_ValueError, "%zd sockets in one call, more than %d", count, SOCKETS_MAX);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *descriptor = listed(list, i);
        descriptors[i] = descriptor ? (int)PyLong_AsLong(descriptor) : -1;
        Py_XDECREF(descriptor);
        if (PyErr_Occurred())
            return -1;
    }
    return count;
}

static void receive_all(const int *descriptors, Py_ssize_t count, char *bytes, size_t room, size_t each_max, ssize_t *sizes)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        size_t share = room / (size_t)(count - i);
        do
            sizes[i] = recv(descriptors[i], bytes, share < each_max ? share : each_max, MSG_DONTWAIT);
        while (sizes[i] < 0 && errno == EINTR);
        if (sizes[i] < 0)
            sizes[i] = -errno;
        else
            bytes += sizes[i], room -= (size_t)sizes[i];
    }
}

/* Return the result for one socket, from its size or negative error number; see `receive`. */
static PyObject *brought(const char *bytes, ssize_t size)
{
    if (size >= 0)
        return PyBytes_FromStringAndSize(bytes, size);
    return size == -EAGAIN || size == -EWOULDBLOCK ? none() : PyLong_FromLong((long)-size);
}

/*
 * tcp_receive(descriptors, buffer, most bytes of one socket) -> for each socket: bytes (empty at the end of the stream),
 * None when there were none, or an error number. All sockets share the buffer.
 */
static PyObject *receive(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("tcp_receive", arguments, count, "lOi"))
        return NULL;
    int descriptors[SOCKETS_MAX];
    ssize_t sizes[SOCKETS_MAX];
    size_t each_max = PyLong_AsSize_t(arguments[2]);
    Py_ssize_t sockets = PyErr_Occurred() ? -1 : read_descriptors(arguments[0], descriptors);
    Py_buffer buffer;
    if (sockets < 0 || PyObject_GetBuffer(arguments[1], &buffer, PyBUF_WRITABLE))
        return NULL;
    PyThreadState *state = sockets < SOCKETS_FEW ? NULL : PyEval_SaveThread();
    receive_all(descriptors, sockets, buffer.buf, (size_t)buffer.len, each_max, sizes);
    if (state)
        PyEval_RestoreThread(state);
    PyObject *all = PyList_New(0);
    const char *bytes = buffer.buf;
    for (Py_ssize_t i = 0; all && i < sockets; i++) {
        append_or_drop(&all, brought(bytes, sizes[i]));
        bytes += sizes[i] > 0 ? sizes[i] : 0;
    }
    PyBuffer_Release(&buffer);
    return all;
}

/*
 * tcp_send(descriptors, bytes for each) -> for each socket: the number of bytes it took (0 when it is full), or a
 * negative error number.
 */
static PyObject *send_all(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("tcp_send", arguments, count, "ll"))
        return NULL;
    int descriptors[SOCKETS_MAX];
    ssize_t sizes[SOCKETS_MAX];
    char *bytes[SOCKETS_MAX];
    PyObject *kept[SOCKETS_MAX];
    Py_ssize_t sockets = read_descriptors(arguments[0], descriptors), read = 0;
    if (sockets >= 0 && PyList_Size(arguments[1]) != sockets)
        PyErr_SetString(PyExc_ValueError, "the two lists differ in length");
    for (; !PyErr_Occurred() && read < sockets; read++) {
        kept[read] = listed(arguments[1], read);
        PyBytes_AsStringAndSize(kept[read], &bytes[read], &sizes[read]);
    }
    PyObject *all = PyErr_Occurred() ? NULL : PyList_New(0);
    if (all) {
        PyThreadState *state = sockets < SOCKETS_FEW ? NULL : PyEval_SaveThread();
        for (Py_ssize_t i = 0; i < sockets; i++) {
            size_t size = (size_t)sizes[i];
            do
                sizes[i] = send(descriptors[i], bytes[i], size, MSG_DONTWAIT | MSG_NOSIGNAL);
            while (sizes[i] < 0 && errno == EINTR);
            if (sizes[i] < 0)
                sizes[i] = errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
        }
        if (state)
            PyEval_RestoreThread(state);
    }
    for (Py_ssize_t i = 0; i < read; i++) {
        if (all)
            append_or_drop(&all, PyLong_FromSsize_t(sizes[i]));
        Py_XDECREF(kept[i]);
    }
    return all;
}

static PyMethodDef functions[] = {
    FUNCTION("tcp_receive", receive),
    FUNCTION("tcp_send", send_all),
    {NULL, NULL, 0, NULL},
};

int add_sockets(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
