"""The wire codec: executes a message's plan for one version against a bounded cursor or a growing buffer.

A Layout knows where a class keeps its fields; a Plan is the flat list of the fields that one version has on the
wire, in order.  Plans are compiled at first use and kept.  Fields are read and written in their slots directly,
without attribute lookups, which is why every object is type-checked before its slots are touched.

Every read knows its end: a length is checked as ``n < 0 or n > end - p``, an array's count is bounded by the bytes
that are left (an element takes at least one), a varint by five bytes.  Nothing is allocated from a count alone.
Everything here holds the GIL (in a long array other threads get it now and then) and makes no system call.

Source: Kafka's message guide (clients/src/main/resources/common/message/README.md), KIP-482 for flexible versions.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from uuid import UUID

from kcore.common.topic_partition import ZERO_UUID
from kcore.errors import InvalidRequest, UnsupportedVersion

cdef extern from "bytes.h" nogil:
    int16_t kc_load_i16(const uint8_t *p)
    int32_t kc_load_i32(const uint8_t *p)
    int64_t kc_load_i64(const uint8_t *p)

cdef extern from *:
    """
    #include "structmember.h"
    /* A slot's place in the object; -1 if the attribute is something else than an object slot. */
    static Py_ssize_t kc_slot_offset(PyObject *descriptor) {
        if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) return -1;
        PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX ? member->offset : -1;
    }
    static PyObject *kc_new_object(PyObject *type) { return PyType_GenericAlloc((PyTypeObject *)type, 0); }

    /* From now on `call` makes the objects of a class: without the dict of keyword arguments that __init__ gets. */
    static void kc_make_objects_by(PyObject *cls, void *call) {
        ((PyTypeObject *)cls)->tp_vectorcall = (vectorcallfunc)call;
        Py_TYPE(cls)->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL; /* CPython 3.11 lets no metaclass inherit it from type */
    }
    """
    Py_ssize_t PyVectorcall_NARGS(size_t nargsf)
    Py_ssize_t kc_slot_offset(PyObject *descriptor)
    object kc_new_object(PyObject *type)
    void kc_make_objects_by(PyObject *cls, void *call)


cdef enum:
    K_BOOL = 1
    K_INT8 = 2
    K_INT16 = 3
    K_INT32 = 4
    K_INT64 = 5
    K_UUID = 6
    K_STRING = 7
    K_BYTES = 8
    K_RECORDS = 9
    K_STRUCT = 10
    K_ARRAY = 11
    K_FLOAT64 = 12

KINDS = {
    "bool": K_BOOL, "int8": K_INT8, "int16": K_INT16, "int32": K_INT32, "int64": K_INT64, "uuid": K_UUID,
    "string": K_STRING, "bytes": K_BYTES, "records": K_RECORDS, "struct": K_STRUCT, "array": K_ARRAY,
    "float64": K_FLOAT64,
}

cdef int MAX_STRING = 32767
cdef int MAX_LENGTH = 0x7FFFFFFF

cdef enum:
    # Some 0.3 ms of reading or writing.
    YIELD_ELEMENTS = 512


cdef inline int let_others_run() except -1:
    """Hand the GIL to a thread that waits for it.  A loop of native code never does so by itself."""
    with nogil:
        pass
    return 0


cdef struct Op:
    uint8_t kind
    uint8_t element      # the elements' kind when kind is K_ARRAY
    uint8_t nullable
    int32_t tag
    Py_ssize_t offset    # of the slot in the object
    PyObject *plan       # Plan of K_STRUCT and of an array of K_STRUCT; kept alive by Plan.fields and the layout
    PyObject *field      # Field, borrowed likewise


cdef class Field:
    """One declared field: its type, and in which versions it is there, nullable, tagged."""

    cdef public str name
    cdef readonly str type_name
    cdef readonly str element_name
    cdef readonly object struct
    cdef object layout   # of struct
    cdef readonly tuple versions
    cdef readonly tuple nullable
    cdef readonly object default
    cdef readonly int tag
    cdef readonly bint ignorable
    cdef int kind
    cdef int element
    cdef Py_ssize_t offset

    def __init__(self, str type_name, tuple versions, tuple nullable, object default, int tag, bint ignorable,
                 str element_name=None, object struct=None):
        self.name = ""
        self.type_name = type_name
        self.kind = KINDS[type_name]
        self.element_name = element_name
        self.element = KINDS[element_name] if element_name is not None else 0
        self.struct = struct
        self.layout = None if struct is None else struct._layout
        self.versions = versions
        self.nullable = nullable
        self.default = default
        self.tag = tag
        self.ignorable = ignorable
        self.offset = -1

    cdef bint in_version(self, int version):
        return self.versions[0] <= version <= self.versions[1]

    cdef bint nullable_in(self, int version):
        return self.nullable is not None and self.nullable[0] <= version <= self.nullable[1]

    cdef object new_default(self):
        if self.default is None:
            return None
        if self.kind == K_ARRAY:
            return []
        if self.kind == K_STRUCT:
            return new_default_struct(<Layout>self.layout)
        return self.default

    cdef bint is_default(self, object value) except -1:
        if value is self.default:
            return True
        if value is None or self.default is None:
            return False
        if self.kind == K_ARRAY:
            return len(value) == 0
        if self.kind == K_STRUCT:
            return is_default_struct(<Layout>self.layout, value)
        return value == self.default


cdef class Layout:
    """Where a class keeps its fields, and its plans by version.  Thread-safe: a plan compiled twice is the same plan."""

    cdef readonly object cls
    cdef readonly tuple fields
    cdef dict by_name
    cdef dict plans

    def __init__(self, cls, tuple fields):
        cdef Field field
        self.cls = cls
        self.fields = fields
        self.by_name = {}
        self.plans = {}
        for field in fields:
            descriptor = cls.__dict__[field.name]
            field.offset = kc_slot_offset(<PyObject *>descriptor)
            if field.offset < 0:
                raise TypeError(f"{cls.__name__}.{field.name} is not a slot")
            self.by_name[field.name] = field
        kc_make_objects_by(<PyObject *>cls, <void *>made_of)

    cdef Plan plan(self, int version, bint flexible):
        cdef int key = version * 2 + flexible
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = Plan(self, version, flexible)
        return <Plan>plan


@cython.final
cdef class Plan:
    cdef Layout layout
    cdef object cls
    cdef int version
    cdef bint flexible
    cdef int count           # ops[:count] are on the wire in this order
    cdef int tagged          # tag_ops[:tagged] in ascending tag order
    cdef Op *ops
    cdef Op *tag_ops
    cdef list unread         # fields that a reader may not meet: absent in this version, or tagged
    cdef list refused        # absent here and not ignorable: must hold their default when written
    cdef list children

    def __cinit__(self, Layout layout, int version, bint flexible):
        cdef Field field
        cdef Op *op
        self.layout = layout
        self.cls = layout.cls
        self.version = version
        self.flexible = flexible
        self.unread = []
        self.refused = []
        self.children = []
        self.ops = <Op *>PyMem_Calloc(len(layout.fields) + 1, sizeof(Op))
        self.tag_ops = <Op *>PyMem_Calloc(len(layout.fields) + 1, sizeof(Op))
        if self.ops == NULL or self.tag_ops == NULL:
            raise MemoryError
        for field in layout.fields:
            if not field.in_version(version):
                self.unread.append(field)
                if not field.ignorable:
                    self.refused.append(field)
            elif field.tag < 0:
                self._fill(&self.ops[self.count], field)
                self.count += 1
        for field in sorted(layout.fields, key=lambda f: f.tag):
            if field.tag >= 0 and field.in_version(version):
                self.unread.append(field)
                self._fill(&self.tag_ops[self.tagged], field)
                self.tagged += 1
        if self.tagged and not flexible:
            raise TypeError(f"{self.cls.__name__}: tagged fields in version {version}, which is not flexible")

    cdef int _fill(self, Op *op, Field field) except -1:
        op.kind = field.kind
        op.element = field.element
        op.nullable = field.nullable_in(self.version)
        op.tag = field.tag
        op.offset = field.offset
        op.field = <PyObject *>field
        if field.struct is not None:
            child = (<Layout>field.layout).plan(self.version, self.flexible)
            self.children.append(child)
            op.plan = <PyObject *>child
        return 0

    def __dealloc__(self):
        PyMem_Free(self.ops)
        PyMem_Free(self.tag_ops)


# ---------------------------------------------------------------- slots

cdef inline PyObject *slot(object owner, Py_ssize_t offset) noexcept:
    return (<PyObject **>(<char *><PyObject *>owner + offset))[0]


cdef inline void set_slot(object owner, Py_ssize_t offset, object value) noexcept:
    cdef PyObject **place = <PyObject **>(<char *><PyObject *>owner + offset)
    cdef PyObject *old = place[0]
    Py_INCREF(value)
    place[0] = <PyObject *>value
    Py_XDECREF(old)


cdef object new_default_struct(Layout layout):
    cdef Field field
    made = kc_new_object(<PyObject *>layout.cls)
    for field in layout.fields:
        set_slot(made, field.offset, field.new_default())
    return made


cdef object made_of(PyObject *cls, PyObject **args, size_t nargsf, PyObject *names):
    """The object that a call of the class makes.  args: the values of the fields whose names are `names`."""
    cdef Layout layout = (<object>cls)._layout
    cdef Field field
    cdef Py_ssize_t i, count = 0 if names == NULL else len(<tuple>names)
    if PyVectorcall_NARGS(nargsf):
        raise TypeError(f"{layout.cls.__name__}: fields are given by name")
    made = kc_new_object(cls)
    for i in range(count):
        found = layout.by_name.get((<tuple>names)[i])
        if found is None:
            raise TypeError(f"{layout.cls.__name__} has no field {(<tuple>names)[i]!r}")
        set_slot(made, (<Field>found).offset, <object>args[i])
    if count < len(layout.fields):
        for field in layout.fields:
            if slot(made, field.offset) == NULL:
                set_slot(made, field.offset, field.new_default())
    return made


cdef bint is_default_struct(Layout layout, object value) except -1:
    cdef Field field
    cdef PyObject *held
    if type(value) is not layout.cls:
        raise TypeError(f"{layout.cls.__name__} expected, got {type(value).__name__}")
    for field in layout.fields:
        held = slot(value, field.offset)
        if held == NULL:
            raise AttributeError(f"{layout.cls.__name__}.{field.name} was deleted")
        if not field.is_default(<object>held):
            return False
    return True


# ---------------------------------------------------------------- reading

cdef struct Cursor:
    const uint8_t *start
    const uint8_t *p
    const uint8_t *end
    PyObject *owner      # the buffer's owner: records are views of it
    int64_t elements_left
    uint32_t elements_read


class TooManyElements(Exception):
    """The arrays of a message have more elements than decode() was allowed to read."""


class _Malformed(Exception):
    """A reader's complaint on its way up; each level adds its part of the path."""

    def __init__(self, reason, position):
        self.reason = reason
        self.position = position
        self.path = []


cdef int fail(Cursor *c, str reason) except -1:
    raise _Malformed(reason, c.p - c.start)


cdef inline int need(Cursor *c, Py_ssize_t n) except -1:
    if n > c.end - c.p:
        fail(c, f"{n} bytes expected, {c.end - c.p} left")
    return 0


cdef int32_t read_uvarint(Cursor *c) except -1:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    if c.p < c.end and c.p[0] < 0x80:
        value = c.p[0]
        c.p += 1
        return <int32_t>value
    while True:
        need(c, 1)
        byte = c.p[0]
        value |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            fail(c, "varint of more than 5 bytes")
        c.p += 1
    if value > <uint64_t>MAX_LENGTH:
        fail(c, f"unsigned varint {value} is above 2^31-1")
    c.p += 1
    return <int32_t>value


cdef Py_ssize_t read_length(Cursor *c, int width, bint compact, bint nullable) except -2:
    """A length or count, -1 for null; never more than the bytes that are left.  width: bytes of the fixed form."""
    cdef Py_ssize_t n
    cdef const uint8_t *at = c.p
    if compact:
        n = <Py_ssize_t>read_uvarint(c) - 1
    else:
        need(c, width)
        if width == 2:
            n = kc_load_i16(c.p)
        else:
            n = kc_load_i32(c.p)
        c.p += width
    if n < 0:
        if not nullable:
            c.p = at
            fail(c, "null where null is not allowed")
        return -1
    if n > c.end - c.p:
        left = c.end - c.p
        c.p = at
        fail(c, f"length {n}, but only {left} bytes follow")
    return n


# Topic ids repeat in every request of a client and a UUID object costs 0.6 us to make, so the last ones are kept.
cdef dict _uuids = {}
cdef int MAX_UUIDS = 4096


cdef object read_uuid(Cursor *c):
    need(c, 16)
    raw = PyBytes_FromStringAndSize(<const char *>c.p, 16)
    c.p += 16
    value = _uuids.get(raw)
    if value is None:
        value = UUID(bytes=raw)
        if value.int == 0:
            value = ZERO_UUID
        if len(_uuids) >= MAX_UUIDS:
            _uuids.clear()
        _uuids[raw] = value
    return value


cdef object read_array(Cursor *c, const Op *op, bint flexible):
    cdef Py_ssize_t n = read_length(c, 4, flexible, op.nullable)
    cdef Py_ssize_t i = 0
    if n < 0:
        return None
    c.elements_left -= n
    if c.elements_left < 0:
        raise TooManyElements()
    cdef list values = []
    cdef Op item
    item.kind = op.element
    item.element = 0
    item.nullable = 0
    item.tag = -1
    item.plan = op.plan
    try:
        for i in range(n):
            values.append(read_value(c, &item, flexible))
            c.elements_read += 1
            if c.elements_read % YIELD_ELEMENTS == 0:
                let_others_run()
    except _Malformed as error:
        error.path.append(f"[{i}]")
        raise
    return values


cdef inline int null_struct(const Op *op):
    """The marker byte of a struct that is null, which has 1 otherwise."""
    return -1 if op.tag < 0 else 0


cdef object read_value(Cursor *c, const Op *op, bint flexible):
    cdef int kind = op.kind
    cdef Py_ssize_t n
    cdef int64_t bits
    cdef double number
    if kind == K_INT32:
        need(c, 4)
        c.p += 4
        return kc_load_i32(c.p - 4)
    elif kind == K_INT64:
        need(c, 8)
        c.p += 8
        return kc_load_i64(c.p - 8)
    elif kind == K_INT16:
        need(c, 2)
        c.p += 2
        return kc_load_i16(c.p - 2)
    elif kind == K_STRUCT:
        if op.nullable:
            need(c, 1)
            c.p += 1
            if <int8_t>(c.p - 1)[0] <= null_struct(op):
                return None
        return read_struct(c, <Plan>op.plan)
    elif kind == K_ARRAY:
        return read_array(c, op, flexible)
    elif kind == K_STRING:
        n = read_length(c, 2, flexible, op.nullable)
        if n < 0:
            return None
        if n > MAX_STRING:
            fail(c, f"string of {n} bytes, at most {MAX_STRING} allowed")
        try:
            text = PyUnicode_DecodeUTF8(<const char *>c.p, n, NULL)
        except UnicodeDecodeError as error:
            c.p += error.start
            fail(c, "string is not UTF-8")
        c.p += n
        return text
    elif kind == K_INT8:
        need(c, 1)
        c.p += 1
        return <int8_t>(c.p - 1)[0]
    elif kind == K_BOOL:
        need(c, 1)
        c.p += 1
        return (c.p - 1)[0] != 0
    elif kind == K_UUID:
        return read_uuid(c)
    elif kind == K_FLOAT64:
        need(c, 8)
        c.p += 8
        bits = kc_load_i64(c.p - 8)
        memcpy(&number, &bits, 8)
        return number
    elif kind == K_BYTES:
        n = read_length(c, 4, flexible, op.nullable)
        if n < 0:
            return None
        c.p += n
        return PyBytes_FromStringAndSize(<const char *>c.p - n, n)
    else:  # K_RECORDS: a view, so that produced bytes are copied only into the log
        n = read_length(c, 4, flexible, op.nullable)
        if n < 0:
            return None
        view = memoryview(<object>c.owner)
        if view.itemsize != 1 or view.ndim != 1:
            view = view.cast("B")
        c.p += n
        return view[c.p - c.start - n:c.p - c.start]


cdef int read_tagged(Cursor *c, Plan plan, object made) except -1:
    """The tagged fields of one struct.  Unknown ones are skipped; a known one must fill exactly its size."""
    cdef int32_t count = read_uvarint(c)
    cdef int32_t tag, i
    cdef int at
    cdef Py_ssize_t size
    cdef const uint8_t *end
    for i in range(count):
        tag = read_uvarint(c)
        size = read_uvarint(c)
        need(c, size)
        end = c.p + size
        for at in range(plan.tagged):
            if plan.tag_ops[at].tag == tag:
                read_field(c, plan, &plan.tag_ops[at], made, end)
                break
        else:
            c.p = end
    return 0


cdef int read_field(Cursor *c, Plan plan, const Op *op, object made, const uint8_t *end) except -1:
    """One tagged field, bounded by its own size instead of the message's end."""
    cdef const uint8_t *outer = c.end
    c.end = end
    try:
        set_slot(made, op.offset, read_value(c, op, plan.flexible))
        if c.p != end:
            fail(c, f"tagged field leaves {end - c.p} bytes of its size unread")
    except _Malformed as error:
        error.path.append((<Field>op.field).name)
        raise
    finally:
        c.end = outer
    return 0


cdef object read_struct(Cursor *c, Plan plan):
    cdef int i = 0
    cdef Field field
    cdef const Op *op
    made = kc_new_object(<PyObject *>plan.cls)
    for field in plan.unread:
        set_slot(made, field.offset, field.new_default())
    try:
        for i in range(plan.count):
            op = &plan.ops[i]
            set_slot(made, op.offset, read_value(c, op, plan.flexible))
    except _Malformed as error:
        error.path.append((<Field>plan.ops[i].field).name)
        raise
    if plan.flexible:
        read_tagged(c, plan, made)
    return made


# ---------------------------------------------------------------- writing

@cython.final
cdef class Writer:
    """A growing buffer; a file slice ends the current chunk and stands between two of them."""

    cdef uint8_t *buf
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef list chunks
    cdef Py_ssize_t chunks_size
    cdef uint32_t elements

    def __cinit__(self):
        self.capacity = 512
        self.buf = <uint8_t *>PyMem_Malloc(self.capacity)
        if self.buf == NULL:
            raise MemoryError
        self.chunks = []

    def __dealloc__(self):
        PyMem_Free(self.buf)

    cdef uint8_t *reserve(self, Py_ssize_t n) except NULL:
        """Room for n more bytes; the place where they go."""
        cdef Py_ssize_t capacity
        cdef uint8_t *grown
        if n > self.capacity - self.size:
            capacity = 2 * self.capacity + n
            grown = <uint8_t *>PyMem_Realloc(self.buf, capacity)
            if grown == NULL:
                raise MemoryError
            self.buf = grown
            self.capacity = capacity
        self.size += n
        return self.buf + self.size - n

    cdef int uvarint(self, uint32_t value) except -1:
        while value >= 0x80:
            self.reserve(1)[0] = <uint8_t>(value | 0x80)
            value >>= 7
        self.reserve(1)[0] = <uint8_t>value
        return 0

    cdef int raw(self, const void *data, Py_ssize_t n) except -1:
        memcpy(self.reserve(n), data, n)
        return 0

    cdef int length(self, Py_ssize_t n, int width, bint compact) except -1:
        """n of -1 is null."""
        if n > (MAX_STRING if width == 2 else MAX_LENGTH - 1):
            raise ValueError(f"length {n} does not fit")
        if compact:
            return self.uvarint(<uint32_t>(n + 1))
        return self.integer(n, width)

    cdef int integer(self, int64_t value, int width) except -1:
        cdef uint8_t *p = self.reserve(width)
        cdef int i
        for i in range(width - 1, -1, -1):
            p[i] = <uint8_t>value
            value >>= 8
        return 0

    cdef int finish_chunk(self) except -1:
        if self.size:
            self.chunks.append(PyBytes_FromStringAndSize(<const char *>self.buf, self.size))
            self.chunks_size += self.size
            self.size = 0
        return 0

    cdef int buffer(self, object value, bint compact) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
        try:
            self.length(view.len, 4, compact)
            self.raw(view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return 0


cdef int write_int(Writer w, object value, int width) except -1:
    cdef int64_t number = value
    cdef int64_t limit
    if width < 8:
        limit = <int64_t>1 << (8 * width - 1)
        if number < -limit or number >= limit:
            raise ValueError(f"{number} does not fit in int{8 * width}")
    return w.integer(number, width)


cdef int write_value(Writer w, const Op *op, object value, bint flexible) except -1:
    cdef int kind = op.kind
    cdef Py_ssize_t n
    cdef const char *text
    cdef int64_t bits
    cdef double number
    if value is None:
        if not op.nullable:
            raise UnsupportedVersion("null where null is not allowed")
        if kind == K_STRUCT:
            return w.integer(null_struct(op), 1)
        return w.length(-1, 2 if kind == K_STRING else 4, flexible)
    if kind == K_INT32:
        return write_int(w, value, 4)
    elif kind == K_INT64:
        return write_int(w, value, 8)
    elif kind == K_INT16:
        return write_int(w, value, 2)
    elif kind == K_STRUCT:
        if op.nullable:
            w.integer(1, 1)
        return write_struct(w, <Plan>op.plan, value)
    elif kind == K_ARRAY:
        return write_array(w, op, value, flexible)
    elif kind == K_STRING:
        text = PyUnicode_AsUTF8AndSize(value, &n)
        w.length(n, 2, flexible)
        if n > MAX_STRING:
            raise ValueError(f"string of {n} bytes, at most {MAX_STRING} allowed")
        return w.raw(text, n)
    elif kind == K_INT8:
        return write_int(w, value, 1)
    elif kind == K_BOOL:
        return w.integer(1 if value else 0, 1)
    elif kind == K_UUID:
        raw = value.int.to_bytes(16, "big")  # as its .bytes, a property in Python
        return w.raw(<const char *><bytes>raw, 16)
    elif kind == K_FLOAT64:
        number = value
        memcpy(&bits, &number, 8)
        return w.integer(bits, 8)
    elif kind == K_BYTES:
        return w.buffer(value, flexible)
    else:  # K_RECORDS
        if PyObject_CheckBuffer(value):
            return w.buffer(value, flexible)
        if hasattr(value, "buffer"):  # MemoryRecords
            return w.buffer(value.buffer, flexible)
        n = value.size_in_bytes
        w.length(n, 4, flexible)
        if n:
            w.finish_chunk()
            w.chunks.append(value)
            w.chunks_size += n
        return 0


cdef int write_array(Writer w, const Op *op, object values, bint flexible) except -1:
    cdef Op item
    item.kind = op.element
    item.element = 0
    item.nullable = 0
    item.tag = -1
    item.plan = op.plan
    if not isinstance(values, (list, tuple)):
        values = list(values)
    w.length(len(values), 4, flexible)
    for value in values:
        write_value(w, &item, value, flexible)
        w.elements += 1
        if w.elements % YIELD_ELEMENTS == 0:
            let_others_run()
    return 0


cdef int write_tagged(Writer w, Plan plan, object value) except -1:
    """The tagged fields that differ from their default.  A size comes before its content but is known only after it,
    and it is one byte nearly always: so the content is written first and moved up by the size's own width."""
    cdef int i
    cdef uint32_t present = 0
    cdef uint64_t chosen = 0
    cdef Py_ssize_t start, size
    cdef int width
    cdef const Op *op
    for i in range(plan.tagged):
        op = &plan.tag_ops[i]
        if not (<Field>op.field).is_default(held(plan, op, value)):
            chosen |= <uint64_t>1 << i
            present += 1
    w.uvarint(present)
    if not present:
        return 0
    for i in range(plan.tagged):
        if not chosen >> i & 1:
            continue
        op = &plan.tag_ops[i]
        w.uvarint(op.tag)
        start = w.size
        write_value(w, op, held(plan, op, value), plan.flexible)
        size = w.size - start
        w.uvarint(<uint32_t>size)
        width = <int>(w.size - start - size)
        memmove(w.buf + start + width, w.buf + start, size)
        w.size = start
        w.uvarint(<uint32_t>size)
        w.size = start + width + size
    return 0


cdef inline object held(Plan plan, const Op *op, object owner):
    cdef PyObject *value = slot(owner, op.offset)
    if value == NULL:
        raise AttributeError(f"{plan.cls.__name__}.{(<Field>op.field).name} was deleted")
    return <object>value


cdef int write_struct(Writer w, Plan plan, object value) except -1:
    cdef int i = 0
    cdef Field field
    cdef const Op *op
    cdef PyObject *absent
    if type(value) is not plan.cls:
        raise TypeError(f"{plan.cls.__name__} expected, got {type(value).__name__}")
    for field in plan.refused:
        absent = slot(value, field.offset)
        if absent != NULL and not field.is_default(<object>absent):
            raise named(UnsupportedVersion(f"there is no such field to carry {<object>absent!r}"), plan, field)
    try:
        for i in range(plan.count):
            op = &plan.ops[i]
            write_value(w, op, held(plan, op, value), plan.flexible)
    except (TypeError, ValueError, OverflowError, UnsupportedVersion) as error:
        if getattr(error, "_kcore_named", False):
            raise
        raise named(error, plan, <Field>plan.ops[i].field) from None
    if plan.flexible:
        write_tagged(w, plan, value)
    return 0


cdef object named(error, Plan plan, Field field):
    """The same complaint, saying which field of which class it is about."""
    kind = UnsupportedVersion if isinstance(error, UnsupportedVersion) else type(error)
    if kind is UnicodeEncodeError:
        kind = ValueError
    better = kind(f"{plan.cls.__name__}.{field.name}, version {plan.version}: {error}")
    better._kcore_named = True
    return better


# ---------------------------------------------------------------- the base classes

cdef Plan message_plan(cls, int version):
    cdef int first = cls.min_version, last = cls.max_version
    if version < first or version > last:
        raise UnsupportedVersion(f"{cls.__name__} has versions {first} to {last}, not {version}")
    return (<Layout>cls._layout).plan(version, cls.flexible_version is not None and version >= cls.flexible_version)


@cython.auto_pickle(False)
cdef class StructBase:
    """A part of a message: keyword arguments are its fields, anything left out has the field's default."""

    def __eq__(self, other):
        cdef Layout layout
        cdef Field field
        if type(self) is not type(other):
            return NotImplemented
        layout = type(self)._layout
        return all([getattr(self, field.name) == getattr(other, field.name) for field in layout.fields])

    __hash__ = None

    def __repr__(self):
        """Only the fields that differ from their default."""
        cdef Layout layout = type(self)._layout
        cdef Field field
        shown = [
            f"{field.name}={value!r}"
            for field, value in [(field, getattr(self, field.name)) for field in layout.fields]
            if not field.is_default(value)
        ]
        return f"{layout.cls.__name__}({', '.join(shown)})"


@cython.auto_pickle(False)
cdef class MessageBase(StructBase):
    """A whole message, with versions min_version to max_version, flexible from flexible_version on."""

    @classmethod
    def decode(cls, buffer, int version, Py_ssize_t position=0, int64_t max_elements=INT64_MAX):
        """The message that starts at `position` of a bytes-like object.

        Fields that the version lacks have their default.  `records` fields are memoryviews of `buffer` (writable if
        it is), so they keep it alive and see later changes; bytes fields are copies.
        Bytes after the message are ignored, as Kafka ignores them.
        Raises InvalidRequest naming the field's path and the position; UnsupportedVersion; TooManyElements if the
        arrays have more than max_elements together, before those beyond are read.
        """
        cdef Plan plan = message_plan(cls, version)
        cdef Py_buffer view
        cdef Cursor c
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            c.start = <const uint8_t *>view.buf
            c.end = c.start + view.len
            c.owner = <PyObject *>buffer
            c.elements_left, c.elements_read = max_elements, 0
            if position < 0 or position > view.len:
                raise ValueError(f"position {position} outside a buffer of {view.len} bytes")
            c.p = c.start + position
            try:
                return read_struct(&c, plan)
            except _Malformed as error:
                path = ".".join(reversed(error.path)).replace(".[", "[") or "tagged fields"
                raise InvalidRequest(
                    f"{cls.__name__} version {version}: {path} at position {error.position}: {error.reason}") from None
        finally:
            PyBuffer_Release(&view)

    def encode(self, int version):
        """The message's bytes.  File slices are read into them.

        Raises UnsupportedVersion for a value that this version cannot carry, ValueError or TypeError for one that
        no version can.
        """
        chunks = self.encode_chunks(version)
        if len(chunks) == 1 and type(chunks[0]) is bytes:
            return chunks[0]
        return b"".join([chunk if type(chunk) is bytes else read_whole(chunk) for chunk in chunks])

    def encode_chunks(self, int version, bytes prefix=b""):
        """The message as [bytes, FileRecords, bytes, ...]: no two neighbours are bytes, file slices stay slices.

        `prefix` goes in front of the first byte.  Raises as encode does.
        """
        cdef Writer w = Writer()
        w.raw(<const char *>prefix, len(prefix))
        write_struct(w, message_plan(type(self), version), self)
        w.finish_chunk()
        return w.chunks

    def encode_frame(self, int version, bytes header):
        """As encode_chunks, with the frame's 4-byte size (of header and message) and the header in front."""
        cdef Writer w = Writer()
        cdef Py_ssize_t total
        cdef uint8_t *p
        w.integer(0, 4)
        w.raw(<const char *>header, len(header))
        write_struct(w, message_plan(type(self), version), self)
        w.finish_chunk()
        total = w.chunks_size - 4
        if total > MAX_LENGTH:
            raise ValueError(f"frame of {total} bytes")
        p = <uint8_t *><char *><bytes>w.chunks[0]  # nobody else has seen this bytes object yet
        p[0] = <uint8_t>(total >> 24)
        p[1] = <uint8_t>(total >> 16)
        p[2] = <uint8_t>(total >> 8)
        p[3] = <uint8_t>total
        return w.chunks


cdef bytes read_whole(chunk):
    data = bytes(chunk.read())
    if len(data) != chunk.size_in_bytes:
        raise OSError(f"{chunk.path}: {len(data)} of {chunk.size_in_bytes} bytes at {chunk.position}, cut meanwhile")
    return data
