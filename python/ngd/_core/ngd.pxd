# SPDX-License-Identifier: Apache-2.0
# Declarations of the C++ classes and functions of src/cpp/ngd.hpp that _core.pyx uses.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport make_shared, shared_ptr, unique_ptr
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

cdef extern from "errors.hpp" nogil:
    void ngd_set_error_module(object errors)
    void ngd_raise_python_error()
    void ngd_begin_end(unsigned long main_thread)
    void ngd_stay_if_ending()

cdef extern from "host_calls.hpp":
    void ngd_set_host_invoke(object invoke)

cdef extern from "values.hpp":
    string _bytes "ngd_bytes_of"(str text) except +ngd_raise_python_error
    vector[int] _ints "ngd_ints_of"(object numbers) except +ngd_raise_python_error
    vector[int64_t] _int64s "ngd_int64s_of"(object numbers) except +ngd_raise_python_error
    vector[uint64_t] _uint64s "ngd_uint64s_of"(object numbers) except +ngd_raise_python_error
    vector[double] _doubles "ngd_doubles_of"(object numbers) except +ngd_raise_python_error
    vector[string] _texts "ngd_texts_of"(object texts) except +ngd_raise_python_error

cdef extern from "ngd.hpp" namespace "ngd" nogil:
    cppclass CppChecksum "ngd::Checksum":
        uint64_t low
        uint64_t high
    CppChecksum cpp_checksum "ngd::checksum"(const void* data, size_t bytes)

    cdef enum class DType:
        Bool
        I8
        I16
        I32
        I64
        U8
        U16
        U32
        U64
        F16
        BF16
        F32
        F64
    DType dtype_named(string_view name) except +ngd_raise_python_error
    string_view name_of "ngd::name_of"(DType dtype)

    cppclass TensorType:
        DType dtype
        vector[int64_t] shape

    cppclass Attr:
        pass

    cppclass Attrs:
        void set_integer "set"(const string& name, int64_t value) \
            except +ngd_raise_python_error
        void set_number "set"(const string& name, double value) except +ngd_raise_python_error
        void set_text "set"(const string& name, string value) except +ngd_raise_python_error
        void set_integers "set"(const string& name, vector[int64_t] value) \
            except +ngd_raise_python_error
        void set_numbers "set"(const string& name, vector[double] value) \
            except +ngd_raise_python_error
        void set_texts "set"(const string& name, vector[string] value) \
            except +ngd_raise_python_error

    cdef enum class SimdLevel:
        pass
    SimdLevel simd_level()
    string_view simd_name "ngd::name_of"(SimdLevel level)

cdef extern from "ngd.hpp" namespace "ngd::config" nogil:
    double cpp_timeout_seconds "ngd::config::timeout_seconds"() except +ngd_raise_python_error

cdef extern from "ngd.hpp" namespace "ngd::bridges" nogil:
    int64_t cpp_register_group "ngd::bridges::register_group"(CppCommunicator& group) \
        except +ngd_raise_python_error
    size_t cpp_xla_handler "ngd::bridges::xla_handler"()

cdef extern from "ngd.hpp" namespace "ngd::device" nogil:
    cppclass CppDevice "ngd::device::Device":
        string_view name()
    cppclass CppBuffer "ngd::device::Buffer":
        CppBuffer() except +ngd_raise_python_error
        CppBuffer(CppDevice& device, size_t bytes) except +ngd_raise_python_error
        CppDevice* device()
        void* data()
        size_t bytes()
        void write(const void* source) except +ngd_raise_python_error
        void read(void* destination) except +ngd_raise_python_error
    int cpp_thread_count "ngd::device::thread_count"() except +ngd_raise_python_error
    int cpp_available_cores "ngd::device::available_cores"()
    void cpp_set_thread_share "ngd::device::set_thread_share"(int threads) \
        except +ngd_raise_python_error

cdef extern from "ngd.hpp" namespace "ngd::kernels" nogil:
    cppclass KernelQuery:
        string_view op
        vector[TensorType] inputs
        vector[TensorType] outputs
        Attrs attrs
    cppclass InPlace:
        int output
        int input
    cppclass Machine:
        pass
    Machine this_machine() except +ngd_raise_python_error
    cppclass Kernel:
        size_t scratch_bytes()
        vector[InPlace] in_place() except +ngd_raise_python_error
    cppclass Offer:
        unique_ptr[Kernel] kernel
        string refusal
    cppclass KernelRow:
        string_view op
        string_view implementation
    cppclass KernelTable:
        size_t size()
        const KernelRow& operator[](size_t i)
    cppclass Found:
        const KernelRow* row
        Offer offer
    Found find(KernelTable table, const KernelQuery& query, const Machine& machine) \
        except +ngd_raise_python_error
    string onednn_version() except +ngd_raise_python_error

cdef extern from "ngd.hpp" namespace "ngd::comm" nogil:
    cdef enum class Kind:
        AllReduce
        ReduceScatter
        AllGather
        Broadcast
        AllToAll
    cdef enum class ReduceOp:
        Sum
        Mean
        Min
        Max
        Prod
    cdef enum class Algorithm:
        pass
    Kind kind_named(string_view name) except +ngd_raise_python_error
    ReduceOp reduce_op_named(string_view name) except +ngd_raise_python_error
    Algorithm algorithm_named(string_view name) except +ngd_raise_python_error
    cppclass ProgramIdentity:
        uint64_t hash
        const char* text
        uint64_t computation
    ProgramIdentity in_branch(ProgramIdentity program, uint64_t branch)
    cppclass Computations:
        pass
    cppclass HeldComputation:
        HeldComputation(shared_ptr[Computations] all, uint64_t computation) \
            except +ngd_raise_python_error
    cppclass Collective:
        Kind kind
        ReduceOp op
        DType dtype
        uint64_t count
        int root
        int tag
        const void* source
        void* destination
        const uint64_t* counts
        const uint64_t* receive_counts
        Algorithm algorithm
        const ProgramIdentity* program
        const char* site
    void validate(const Collective& collective, int rank, int size) \
        except +ngd_raise_python_error
    cppclass CallStats:
        Kind kind
        ReduceOp op
        string site
        uint64_t calls
        uint64_t bytes
        double seconds
        double waited_seconds
        vector[uint64_t] last
    string_view kind_name "ngd::comm::name_of"(Kind kind)
    string_view reduce_op_name "ngd::comm::name_of"(ReduceOp op)
    cppclass CppRange "ngd::comm::CopyOnWriteMapping::Range":
        size_t begin
        size_t end
    cppclass CppCopyOnWriteMapping "ngd::comm::CopyOnWriteMapping":
        void* data()
        vector[CppRange] copied() except +ngd_raise_python_error
        void discard()
    cppclass CppCommonMemory "ngd::comm::CommonMemory":
        uint64_t make_common(size_t nbytes) except +ngd_raise_python_error
        shared_ptr[void] open_common(int maker, uint64_t number) except +ngd_raise_python_error
        unique_ptr[CppCopyOnWriteMapping] map_common(int maker, uint64_t number, size_t nbytes) \
            except +ngd_raise_python_error
    cppclass CppCommunicator "ngd::comm::Communicator":
        string_view name()
        int rank()
        int size()
        int local_rank()
        int local_size()
        unique_ptr[CppCommunicator] split(int color, int key) except +ngd_raise_python_error
        vector[CallStats] stats() except +ngd_raise_python_error
        const shared_ptr[Computations]& computations()
        CppCommonMemory* common_memory()
        cbool is_over()
        cbool in_child()
        void abort(const string& traceback)
        void close()
        void set_interrupt(cbool (*interrupt)() noexcept nogil)
    CppCommonMemory& common_memory_of(CppCommunicator& group) except +ngd_raise_python_error
    unique_ptr[CppCommunicator] split_retrying(
        CppCommunicator& group, int color, int key, double timeout_seconds
    ) except +ngd_raise_python_error
    cppclass Tensor:
        DType dtype
        uint64_t count
        const void* source
        void* destination
    cppclass CppMark "ngd::comm::Mark":
        CppMark(const string& name) except +ngd_raise_python_error
    unique_ptr[CppCommunicator] make_self_communicator() except +ngd_raise_python_error
    unique_ptr[CppCommunicator] make_shm_communicator(
        const string& job_key, int rank, int size, double timeout_seconds,
        cbool (*interrupt)() noexcept nogil
    ) except +ngd_raise_python_error
    unique_ptr[CppCommunicator] make_hierarchical_communicator(
        int fortran_handle, double timeout_seconds, cbool (*interrupt)() noexcept nogil
    ) except +ngd_raise_python_error
    unique_ptr[CppCommunicator] make_mpi_communicator(
        int fortran_handle, double timeout_seconds
    ) except +ngd_raise_python_error
    unique_ptr[CppCommunicator] make_group_of(
        CppCommunicator& world, const vector[int]& members, int number, const string& key,
        double timeout_seconds, cbool (*interrupt)() noexcept nogil
    ) except +ngd_raise_python_error
    int cpp_next_group_number "ngd::comm::next_group_number"(
        CppCommunicator& world
    ) except +ngd_raise_python_error
    void cpp_finalize_mpi "ngd::comm::finalize_mpi"() noexcept nogil
    cbool cpp_mpi_holds_memory "ngd::comm::mpi_holds_memory"() noexcept nogil
    void cpp_load_mpi "ngd::comm::load_mpi"(const string& name) except +ngd_raise_python_error
    string cpp_mpi_version "ngd::comm::mpi_version"() except +ngd_raise_python_error
    string cpp_mpis "ngd::comm::mpis"() except +ngd_raise_python_error

cdef extern from "call_state.hpp" nogil:
    cppclass CallState:
        Collective collective
        cbool is_list
        vector[uint64_t] counts
        vector[uint64_t] receive_counts
        void set_shape(const int64_t* shape, int axes, uint64_t more) \
            except +ngd_raise_python_error
        void add_array(Tensor array, const int64_t* shape, int axes) \
            except +ngd_raise_python_error
        void submit(CppCommunicator& group, cbool follows, double timeout_seconds) \
            except +ngd_raise_python_error
        void wait(CppCommunicator& group, double timeout_seconds) except +ngd_raise_python_error
        void finish(CppCommunicator& group, double timeout_seconds) \
            except +ngd_raise_python_error
        cbool wait_for(CppCommunicator& group, double seconds) except +ngd_raise_python_error
        void run(CppCommunicator& group, double timeout_seconds) except +ngd_raise_python_error
    void run_collective(
        CppCommunicator& group, const Collective& collective, double timeout_seconds
    ) except +ngd_raise_python_error
    unique_ptr[CallState] make_call_state() except +ngd_raise_python_error

cdef extern from "ngd.hpp" namespace "ngd::runtime" nogil:
    cdef enum class MemoryKind:
        pass
    cdef enum class Action:
        pass
    cppclass Value:
        TensorType type
        MemoryKind memory
        size_t position
        size_t offset
    cppclass CppProgram "ngd::runtime::Program"
    cppclass Member "ngd::runtime::Member":
        string op
        string site
        int application
    cppclass CppInstruction "ngd::runtime::Instruction":
        Action action
        string op
        vector[int] inputs
        vector[int] outputs
        Attrs attrs
        int start
        int group
        string site
        vector[CppProgram] bodies
        vector[Member] members
    cppclass GroupSequence "ngd::runtime::GroupSequence":
        string text
        uint64_t hash
        uint64_t computation
    cppclass CppProgram "ngd::runtime::Program":
        vector[Value] values
        vector[CppInstruction] instructions
        vector[vector[char]] constants
        size_t inputs
        size_t outputs
        size_t variables
        size_t private_bytes
        size_t shared_bytes
        vector[GroupSequence] groups
    cppclass Life:
        size_t first
        size_t last
        size_t bytes
    vector[size_t] cpp_first_fit "ngd::runtime::first_fit"(const vector[Life]& lives) \
        except +ngd_raise_python_error
    string program_text "ngd::runtime::to_string"(const CppProgram& program) \
        except +ngd_raise_python_error
    cppclass DeviceRow:
        CppDevice& device() except +ngd_raise_python_error
        KernelTable table()
    const DeviceRow& device_named(string_view name) except +ngd_raise_python_error
    cppclass CppArena "ngd::runtime::Arena":
        CppArena() except +ngd_raise_python_error
    cppclass Executor:
        Executor(CppProgram program, CppDevice& device, KernelTable table,
                 vector[CppCommunicator*] communicators, vector[void*] variables,
                 cbool (*interrupt)() noexcept nogil, shared_ptr[CppArena] arena) \
            except +ngd_raise_python_error
        void run(const void* const* inputs, void* const* outputs) \
            except +ngd_raise_python_error
        cbool variables_touched()
        void move_variables(const vector[void*]& variables) except +ngd_raise_python_error
        Record record() except +ngd_raise_python_error
    cppclass Timing:
        uint64_t calls
        uint64_t ns
        uint64_t least_ns
        uint64_t pending_ns
    cppclass Record:
        Timing whole
        vector[Timing] instructions
        vector[Record] bodies
    cppclass Event:
        uint64_t program
        uint32_t instruction
        uint64_t thread
        int64_t begin_ns
        int64_t end_ns
    cppclass Label:
        Action action
        string op
        string site
        int start
    cppclass Recording:
        void begin(size_t max_events) except +ngd_raise_python_error
        void end()
        vector[Event] events() except +ngd_raise_python_error
        unordered_map[uint64_t, vector[Label]] labels() except +ngd_raise_python_error
        uint64_t dropped()
    Recording& recording()
    int64_t now_ns()
    uint32_t whole_run "ngd::runtime::Event::kWhole"
