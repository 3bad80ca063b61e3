#include "io/hdf5/file.hpp"

#include "io/files/access.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tessera::hdf5 {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and nothing is ever converted");
static_assert(sizeof(hid_t) == sizeof(Object::Id));

namespace {

/// Why a call of HDF5 has failed.
struct Cause {
  std::string text = {};  ///< the innermost of HDF5's messages; of a failed system call the quoted text alone
  int system = 0;    ///< errno of the system call that failed; 0: none did, so the file's content is at fault
};

/// Reads HDF5's stack of messages and clears it. A failure inside MPI-IO, which gives no errno, counts as EIO.
Cause last_error() {
  std::vector<std::string> texts;
  Cause cause{"unknown cause"};
  std::pair both(&texts, &cause);
  const auto keep = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    const auto& [all, found] = *static_cast<decltype(both)*>(out);
    if (error->desc) all->emplace_back(error->desc);
    if (error->min_num == H5E_MPI) found->system = EIO;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep, &both);
  H5Eclear2(H5E_DEFAULT);
  if (!texts.empty()) cause.text = texts.front();
  for (const std::string& text : texts) {
    constexpr std::string_view number = "errno = ", quoted = "error message = '";
    const std::size_t at = text.find(number), begin = text.find(quoted), end = text.find('\'', begin + quoted.size());
    if (at == std::string::npos) continue;
    cause.system = std::atoi(text.c_str() + at + number.size());
    if (begin != std::string::npos && end != std::string::npos)
      cause.text = text.substr(begin + quoted.size(), end - begin - quoted.size());
    break;
  }
  return cause;
}

/// The error of a call on a file: of what a failed system call means, if one failed while reading, else `blame`.
Error error_of(const Cause& cause, Exit blame, const std::filesystem::path& path, std::string_view doing) {
  if (blame == Exit::file && cause.system != 0) return unreadable(path, doing, cause.system);
  return {blame, fmt::format("{}: {}: {}", path.string(), doing, cause.text)};
}

Object space_of(const std::vector<std::int64_t>& shape) {
  if (shape.empty()) return {H5Screate(H5S_SCALAR), H5Sclose};
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  return {H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose};
}

/// bf16 as a float type of HDF5: 1 sign bit at 15, 8 exponent bits at 7, 7 mantissa bits at 0, bias 127.
Object bf16_type() {
  Object type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  H5Tset_fields(type.id(), 15, 7, 8, 0, 7);  // fields before precision, precision before size
  H5Tset_precision(type.id(), 16);
  H5Tset_size(type.id(), 2);
  H5Tset_ebias(type.id(), 127);
  return type;
}

Object type_of(DType type) {
  switch (type) {
    case DType::f32:
      return {H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
    case DType::bf16:
      return bf16_type();
    case DType::u8:
      return {H5Tcopy(H5T_STD_U8LE), H5Tclose};
    default:
      throw Error(Exit::internal, fmt::format("{} is no type of checkpoints", name_of(type)));
  }
}

Object text_type(std::size_t size) {
  Object type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.id(), std::max<std::size_t>(size, 1));
  H5Tset_strpad(type.id(), H5T_STR_NULLPAD);
  return type;
}

/// A row of a table as a packed HDF5 compound type.
Object row_type(const Columns& columns) {
  Object compound(H5Tcreate(H5T_COMPOUND, row_bytes(columns)), H5Tclose);
  std::size_t at = 0;
  for (const Column& column : columns) {
    const hsize_t count = column.bytes / sizeof(std::uint64_t);
    const auto numbers = [&] {
      return count == 1 ? H5Tcopy(H5T_STD_U64LE) : H5Tarray_create2(H5T_STD_U64LE, 1, &count);
    };
    const Object type = column.kind == Column::Kind::text ? text_type(column.bytes) : Object(numbers(), H5Tclose);
    H5Tinsert(compound.id(), column.name, std::exchange(at, at + column.bytes), type.id());
  }
  return compound;
}

/// Dataset properties: no time stamps, so that two saves of one state have the same bytes; no more space than needed,
/// allocated at once.
Object contiguous() {
  Object properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_layout(properties.id(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(properties.id(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(properties.id(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(properties.id(), false);
  return properties;
}

}  // namespace

void prepare_library() {
  [[maybe_unused]] static const herr_t once = H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::string version() {
  prepare_library();
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

bool Object::close() {
  const Id id = std::exchange(id_, -1);
  return id < 0 || close_(id) >= 0;
}

File::File(std::filesystem::path path, Exit blame, const Parallel* parallel)
    : path_(std::move(path)), blame_(blame), parallel_(parallel) {
  prepare_library();
  contiguous_ = contiguous();
}

std::string File::name() const { return parallel_ ? parallel_->name_of(path_) : path_.string(); }

Control::LibraryCall File::watched(const char* what) const {
  return parallel_ ? parallel_->watched(what) : Control::LibraryCall(nullptr, what);
}

Error File::failure(std::string_view doing) const { return error_of(last_error(), blame_, path_, doing); }

Object::Id File::checked(Object::Id id, std::string_view doing) const {
  if (id < 0) throw failure(doing);
  return id;
}

/// Whether a question is answered by yes. A damaged file answers no; a failed system call is no answer.
bool File::yes(int answer, const std::string& about) const {
  if (answer >= 0) return answer > 0;
  if (const Error error = failure(about); error.code() == Exit::environment) throw error;
  return false;
}

/// 1.8 to 1.10: from 1.8 on object headers carry checksums, without which flipped bits are read as if they were true.
Object File::access() const {
  Object properties(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(properties.id(), H5F_LIBVER_V18, H5F_LIBVER_V110);
  if (parallel_) parallel_->add_to(properties.id());
  return properties;
}

/// The library's cache takes all metadata of a checkpoint: what it wrote in between would make ranks wait for each
/// other.
Object File::access_to_write(std::int64_t datasets) const {
  Object properties = access();
  constexpr std::int64_t facts = 8192, dataset = 512;  // 320 bytes, its name and attributes short
  H5Pset_meta_block_size(properties.id(), static_cast<hsize_t>(facts + datasets * dataset));
  // An empty file ends anywhere; elements of payload begin at multiples of their size, which disks and copies want.
  constexpr hsize_t element = 8;
  if (datasets > 0) H5Pset_alignment(properties.id(), facts, element);
  constexpr std::size_t cache = std::size_t{32} << 20;
  H5AC_cache_config_t config{};
  config.version = H5AC__CURR_CACHE_CONFIG_VERSION;
  H5Pget_mdc_config(properties.id(), &config);
  config.set_initial_size = true;
  config.initial_size = config.min_size = config.max_size = cache;
  config.dirty_bytes_threshold = cache / 2;
  config.incr_mode = H5C_incr__off;
  config.flash_incr_mode = H5C_flash_incr__off;
  config.decr_mode = H5C_decr__off;
  H5Pset_mdc_config(properties.id(), &config);
  return properties;
}

File File::create(const std::filesystem::path& path, const Parallel* parallel) {
  File file(path, Exit::environment, parallel);
  const Object access = file.access_to_write(0), root(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_obj_track_times(root.id(), false);
  const auto watched = file.watched("H5Fcreate");
  file.take(H5Fcreate(file.name().c_str(), H5F_ACC_EXCL, root.id(), access.id()), "cannot be made");
  return file;
}

File File::open(const std::filesystem::path& path, const Parallel* parallel) {
  File file(path, Exit::file, parallel);
  const auto watched = file.watched("H5Fopen");
  const Object access = file.access();
  Object::Id opened = -1;
  Cause cause;
  const auto open = [&] {
    opened = H5Fopen(file.name().c_str(), H5F_ACC_RDONLY, access.id());
    cause = opened < 0 ? last_error() : Cause();
    return cause.system;
  };
  parallel ? open() : patiently(open);  // together it is tried once, since the ranks would try differently often
  if (opened < 0) throw error_of(cause, Exit::file, path, "cannot be read as HDF5");
  file.take(opened, "");
  return file;
}

File File::open_to_write(const std::filesystem::path& path, const Parallel& parallel, std::int64_t datasets) {
  File file(path, Exit::environment, &parallel);
  const auto watched = file.watched("H5Fopen");
  const Object access = file.access_to_write(datasets);
  file.take(H5Fopen(file.name().c_str(), H5F_ACC_RDWR, access.id()), "cannot be opened to write");
  return file;
}

void File::take(Object::Id opened, std::string_view otherwise) {
  file_ = Object(checked(opened, otherwise), H5Fclose);
  if (parallel_) parallel_->tell_unknown(opened);
}

File::~File() {
  if (!file_) return;
  const auto watched = this->watched("H5Fclose");
  open_.close();
  file_.close();
}

void File::close() {
  const auto watched = this->watched("H5Fclose");
  open_.close();
  open_path_.clear();
  if (!file_.close()) checked(-1, "cannot be closed");
}

void File::add_groups(const std::string& path) {
  const Object properties(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  H5Pset_obj_track_times(properties.id(), false);
  const auto watched = this->watched("H5Gcreate");
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string group = path.substr(0, slash);
    if (!has(group))
      Object(checked(H5Gcreate2(file_.id(), group.c_str(), H5P_DEFAULT, properties.id(), H5P_DEFAULT), group),
             H5Gclose);
    if (slash == std::string::npos) return;
  }
}

Object File::create_dataset(const std::string& path, Object::Id type, const std::vector<std::int64_t>& dims) {
  const Object space = space_of(dims);
  const auto watched = this->watched("H5Dcreate");
  return {
      checked(H5Dcreate2(file_.id(), path.c_str(), type, space.id(), H5P_DEFAULT, contiguous_.id(), H5P_DEFAULT), path),
      H5Dclose};
}

Dataset File::add_dataset(const std::string& path, const Shape& shape, DType type) {
  open_ = create_dataset(path, type_of(type).id(), shape.dims());
  open_path_ = path;
  return {shape, type, offset_of(path)};
}

namespace {

/// Adds a range of elements, in row-major order, to the selection of a dataspace. A range in N axes takes at most 2 N -
/// 1 boxes: part of a row, whole rows, part of a row.
void select(Object::Id space, const std::vector<hsize_t>& dims, hsize_t first, hsize_t count) {
  std::vector<hsize_t> rows(dims.size(), 1);  // elements per index of each axis
  for (std::size_t axis = dims.size() - 1; axis-- > 0;) rows[axis] = rows[axis + 1] * dims[axis + 1];
  while (count > 0) {
    std::size_t axis = 0;
    while (first % rows[axis] != 0 || count < rows[axis]) ++axis;
    std::vector<hsize_t> begin(dims.size()), counts(dims.size(), 1);
    for (std::size_t i = 0; i < dims.size(); ++i) begin[i] = first / rows[i] % dims[i];
    std::copy(dims.begin() + static_cast<std::ptrdiff_t>(axis), dims.end(),
              counts.begin() + static_cast<std::ptrdiff_t>(axis));
    counts[axis] = std::min(count / rows[axis], dims[axis] - begin[axis]);
    H5Sselect_hyperslab(space, H5S_SELECT_OR, begin.data(), nullptr, counts.data(), nullptr);
    first += counts[axis] * rows[axis];
    count -= counts[axis] * rows[axis];
  }
}

std::vector<hsize_t> extent_of(Object::Id space) {
  hsize_t dims[H5S_MAX_RANK];
  return {dims, dims + std::max(0, H5Sget_simple_extent_dims(space, dims, nullptr))};
}

/// The arguments of H5Dwrite and H5Dread: elements in the file, and as many in memory.
struct Selection {
  Object type, file, memory;
  Selection(Object::Id data, const ElementRange& range)
      : type(H5Dget_type(data), H5Tclose),
        file(H5Dget_space(data), H5Sclose),
        memory(space_of({std::max<std::int64_t>(range.count, 1)})) {
    H5Sselect_none(file.id());
    select(file.id(), extent_of(file.id()), static_cast<hsize_t>(range.first), static_cast<hsize_t>(range.count));
    if (range.count == 0) H5Sselect_none(memory.id());
  }
};

}  // namespace

void File::transfer(Parallel::Transfer transfer, const std::string& path, const ElementRange& range,
                    void* memory) const {
  const bool writes = transfer == Parallel::Transfer::write;
  const Object::Id data = at(path), how = parallel_ ? parallel_->properties(transfer) : H5P_DEFAULT;
  const Selection selection(data, range);
  const Object::Id type = selection.type.id(), here = selection.memory.id(), there = selection.file.id();
  const bool waits = parallel_ && parallel_->collective(transfer);  // an independent transfer waits for the disk alone
  const Control::LibraryCall watch =
      waits ? watched(writes ? "H5Dwrite" : "H5Dread") : Control::LibraryCall(nullptr, "");
  checked(writes ? H5Dwrite(data, type, here, there, how, memory) : H5Dread(data, type, here, there, how, memory),
          path);
}

Object::Id File::at(const std::string& object) const {
  if (!open_ || open_path_ != object) {
    open_ = Object(checked(H5Oopen(file_.id(), object.c_str(), H5P_DEFAULT), object), H5Oclose);
    open_path_ = object;
  }
  return open_.id();
}

namespace {

Object::Id number_type(std::int64_t) { return H5T_STD_I64LE; }
Object::Id number_type(std::uint64_t) { return H5T_STD_U64LE; }
Object::Id number_type(double) { return H5T_IEEE_F64LE; }

}  // namespace

void File::add_attribute(const std::string& object, const char* name, const Value& value) {
  const std::string what = object + "@" + name;
  const auto watched = this->watched("H5Acreate");
  const auto add = [&](Object::Id type, const std::vector<std::int64_t>& dims, const void* data) {
    const Object space = space_of(dims);
    const Object made(checked(H5Acreate2(at(object), name, type, space.id(), H5P_DEFAULT, H5P_DEFAULT), what),
                      H5Aclose);
    checked(H5Awrite(made.id(), type, data), what);
  };
  const auto kinds = [&]<class T>(const T& held) {
    if constexpr (std::is_same_v<T, std::string>)
      add(text_type(held.size()).id(), {}, held.c_str());  // an empty text is stored as its final zero byte
    else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>)
      add(H5T_STD_I64LE, {std::ssize(held)}, held.data());
    else
      add(number_type(held), {}, &held);
  };
  std::visit(kinds, value);
}

Value File::attribute(const std::string& object, const char* name) const {
  const std::string what = object + "@" + name;
  const Object found(checked(H5Aopen(at(object), name, H5P_DEFAULT), what), H5Aclose);
  const Object type(checked(H5Aget_type(found.id()), what), H5Tclose),
      space(checked(H5Aget_space(found.id()), what), H5Sclose);
  const auto read = [&](void* to) { checked(H5Aread(found.id(), type.id(), to), what); };
  const hssize_t count = H5Sget_simple_extent_npoints(space.id());
  const auto holds_one = [&](auto& number) {
    const bool fits = count == 1 && H5Tequal(type.id(), number_type(number)) > 0;
    if (fits) read(&number);
    return fits;
  };
  if (count == 1 && H5Tget_class(type.id()) == H5T_STRING && H5Tis_variable_str(type.id()) == 0) {
    std::string bytes(room(1, H5Tget_size(type.id())), '\0');
    read(bytes.data());
    return bytes.substr(0, strnlen(bytes.data(), bytes.size()));
  }
  if (H5Sget_simple_extent_type(space.id()) == H5S_SIMPLE && H5Tequal(type.id(), H5T_STD_I64LE) > 0) {
    std::vector<std::int64_t> values(room(count, sizeof(std::int64_t)) / sizeof(std::int64_t));
    read(values.data());
    return values;
  }
  if (std::int64_t number = 0; holds_one(number)) return number;
  if (std::uint64_t number = 0; holds_one(number)) return number;
  if (double number = 0; holds_one(number)) return number;
  throw unfit(what + " has another type");
}

std::size_t row_bytes(const Columns& columns) {
  std::size_t sum = 0;
  for (const Column& column : columns) sum += column.bytes;
  return sum;
}

void File::add_table(const std::string& path, const Columns& columns, std::size_t rows) {
  create_dataset(path, row_type(columns).id(), {static_cast<std::int64_t>(rows)});
}

void File::add_numbers(const std::string& path, std::size_t count) {
  create_dataset(path, H5T_STD_U64LE, {static_cast<std::int64_t>(count)});
}

void File::write_whole(const std::string& path, Object::Id type, const void* data) {
  checked(H5Dwrite(at(path), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), path);
}

void File::write_table(const std::string& path, const Columns& columns, const std::vector<char>& rows) {
  write_whole(path, row_type(columns).id(), rows.data());
}

void File::write_numbers(const std::string& path, const std::vector<std::uint64_t>& numbers) {
  write_whole(path, H5T_STD_U64LE, numbers.data());
}

/// Bytes of `count` elements, which the file has room for: else its damaged lengths would pass for a lack of memory.
std::size_t File::room(std::int64_t count, std::size_t size) const {
  hsize_t all = 0;
  checked(H5Fget_filesize(file_.id(), &all), "has no size");
  if (count < 0 || (size > 0 && static_cast<std::size_t>(count) > all / size))
    throw unfit("cannot be read as HDF5: it is damaged");
  return static_cast<std::size_t>(count) * size;
}

/// Reads a dataset of one axis whose type is the one that `expected` gives for the stored type.
std::vector<char> File::read_whole(const std::string& path, const char* what,
                                   const std::function<Object::Id(Object::Id stored)>& expected) const {
  const Object stored(checked(H5Dget_type(at(path)), path), H5Tclose),
      space(checked(H5Dget_space(at(path)), path), H5Sclose);
  const std::int64_t rows = H5Sget_simple_extent_npoints(space.id());
  if (rows < 0 || H5Tequal(stored.id(), expected(stored.id())) <= 0) throw unfit(path + " is no " + what);
  std::vector<char> bytes(room(rows, H5Tget_size(stored.id())));
  checked(H5Dread(at(path), stored.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()), path);
  return bytes;
}

std::vector<char> File::table(const std::string& path, const char* what,
                              const std::function<Columns(std::size_t columns, std::size_t bytes)>& expected) const {
  Object type;
  return read_whole(path, what, [&](Object::Id stored) {
    const auto columns = static_cast<std::size_t>(std::max(0, H5Tget_nmembers(stored)));
    type = row_type(expected(columns, H5Tget_size(stored)));
    return type.id();
  });
}

std::vector<std::uint64_t> File::numbers(const std::string& path) const {
  const std::vector<char> bytes = read_whole(path, "row of numbers", [](Object::Id) { return H5T_STD_U64LE; });
  std::vector<std::uint64_t> numbers(bytes.size() / sizeof(std::uint64_t));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

bool File::has(const std::string& path) const {
  return path == "/" || (open_ && path == open_path_) ||
         yes(H5Lexists(file_.id(), path.c_str(), H5P_DEFAULT), path);
}
bool File::has(const std::string& object, const char* attribute) const {
  return yes(H5Aexists(at(object), attribute), object + "@" + attribute);
}

std::int64_t File::links(const std::string& group) const {
  H5G_info_t about{};
  checked(H5Gget_info(at(group), &about), group);
  return static_cast<std::int64_t>(about.nlinks);
}

std::vector<std::string> File::datasets() const {
  std::vector<std::string> paths;
  const auto keep = [](hid_t, const char* name, const H5O_info_t* info, void* out) -> herr_t {
    if (info->type == H5O_TYPE_DATASET) static_cast<std::vector<std::string>*>(out)->push_back(name);
    return 0;
  };
  const herr_t visited = H5Ovisit(file_.id(), H5_INDEX_NAME, H5_ITER_INC, keep, &paths);
  yes(visited, "its datasets");
  if (visited < 0) throw unfit("cannot be read as HDF5: it is damaged");
  return paths;
}

std::vector<std::int64_t> File::dims(const std::string& path) const {
  const Object space(checked(H5Dget_space(at(path)), path), H5Sclose);
  const std::vector<hsize_t> dims = extent_of(space.id());
  return {dims.begin(), dims.end()};
}

std::int64_t File::offset_of(const std::string& path) const {
  const haddr_t offset = H5Dget_offset(at(path));
  if (offset == HADDR_UNDEF) throw Error(blame_, path_.string() + ": " + path + " has no place");
  return static_cast<std::int64_t>(offset);
}

Dataset File::dataset(const std::string& path) const {
  const Object type(checked(H5Dget_type(at(path)), path), H5Tclose);
  const auto stored =
      std::ranges::find_if(stored_types, [&](DType known) { return H5Tequal(type.id(), type_of(known).id()) > 0; });
  if (stored == std::end(stored_types)) throw unfit(path + " has a type that no checkpoint has");
  const std::vector<std::int64_t> dims = this->dims(path);
  const haddr_t offset = H5Dget_offset(at(path));
  if (dims.empty() || dims.size() > 3 || offset == HADDR_UNDEF)
    throw unfit(path + " is no contiguous tensor of 1 to 3 axes");
  return {Shape(dims), *stored, static_cast<std::int64_t>(offset)};
}

}  // namespace tessera::hdf5
