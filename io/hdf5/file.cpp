#include "io/hdf5/file.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

namespace tessera::hdf5 {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and nothing is ever converted");
static_assert(sizeof(hid_t) == sizeof(Object::Id));

namespace {

/// The innermost of HDF5's messages: what really happened; of a system call's, among addresses and flags, its words.
std::string last_error() {
  std::string text = "unknown cause";
  const auto keep = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    if (error->desc) *static_cast<std::string*>(out) = error->desc;
    return 1;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep, &text);
  H5Eclear2(H5E_DEFAULT);
  constexpr std::string_view quoted = "error message = '";
  if (const std::size_t begin = text.find(quoted), end = text.find('\'', begin + quoted.size());
      begin != std::string::npos && end != std::string::npos)
    return text.substr(begin + quoted.size(), end - begin - quoted.size());
  return text;
}

Object space_of(const std::vector<std::int64_t>& shape) {
  if (shape.empty()) return {H5Screate(H5S_SCALAR), H5Sclose};
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  return {H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose};
}

/// bf16 as a float of HDF5's own: 1 sign bit at 15, 8 exponent bits at 7, 7 mantissa bits at 0, bias 127.
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

std::string trimmed(const char* bytes, std::size_t size) { return {bytes, strnlen(bytes, size)}; }

enum class Columns { integrity, all };

/// The members of a row in their order: texts with the bytes that they take, numbers, and an array of them.
template <class Row, class Visitor>
void visit_row(Row&& row, std::size_t width, Columns columns, Visitor&& member) {
  member("name", row.name, width);
  member("digest", row.digest);
  member("elements", row.elements);
  member("non_finite", row.non_finite);
  if (columns == Columns::integrity) return;
  constexpr std::size_t type_width = 8, axes_width = 24;
  member("type", row.type, type_width);
  member("axes", row.axes, axes_width);
  member("shape", row.shape);
  member("tied_to", row.tied_to, width);
  member("datasets", row.datasets);
}

struct RowBytes {
  std::size_t total = 0;
  void operator()(const char*, const std::string&, std::size_t bytes) { total += bytes; }
  void operator()(const char*, const auto& numbers) { total += sizeof numbers; }
};

std::size_t row_bytes(std::size_t width, Columns columns) {
  RowBytes bytes;
  visit_row(TableRow{}, width, columns, bytes);
  return bytes.total;
}

/// A row as a compound, packed.
class RowType {
 public:
  RowType(std::size_t width, Columns columns)
      : width_(width),
        columns_(columns),
        size_(row_bytes(width, columns)),
        compound_(H5Tcreate(H5T_COMPOUND, size_), H5Tclose) {
    visit_row(TableRow{}, width, columns, Insert{compound_.id()});
  }
  /// That of a table of such rows; of others, one that is not theirs.
  static RowType like(Object::Id stored) {
    const bool all = H5Tget_nmembers(stored) > 4;
    const Columns columns = all ? Columns::all : Columns::integrity;
    const std::size_t size = H5Tget_size(stored), numbers = row_bytes(0, columns);
    return {size > numbers ? (size - numbers) / (all ? 2 : 1) : 1, columns};
  }

  Object::Id id() const { return compound_.id(); }
  std::size_t size() const { return size_; }
  void encode(const TableRow& row, char* to) const { visit_row(row, width_, columns_, Encode{to}); }
  TableRow decode(const char* from) const {
    TableRow row;
    visit_row(row, width_, columns_, Decode{from});
    return row;
  }

 private:
  struct Insert {
    Object::Id compound;
    std::size_t at = 0;
    void operator()(const char* name, const std::string&, std::size_t bytes) { add(name, text_type(bytes), bytes); }
    void operator()(const char* name, std::uint64_t) {
      add(name, {H5Tcopy(H5T_STD_U64LE), H5Tclose}, sizeof(std::uint64_t));
    }
    void operator()(const char* name, const std::array<std::uint64_t, 3>& numbers) {
      const hsize_t count = numbers.size();
      add(name, {H5Tarray_create2(H5T_STD_U64LE, 1, &count), H5Tclose}, sizeof numbers);
    }
    void add(const char* name, const Object& type, std::size_t bytes) {
      H5Tinsert(compound, name, at, type.id());
      at += bytes;
    }
  };
  struct Encode {
    char* to;
    void operator()(const char*, const std::string& text, std::size_t bytes) {
      std::memcpy(to, text.data(), std::min(text.size(), bytes - 1));
      to += bytes;
    }
    void operator()(const char*, const auto& numbers) {
      std::memcpy(to, &numbers, sizeof numbers);
      to += sizeof numbers;
    }
  };
  struct Decode {
    const char* from;
    void operator()(const char*, std::string& text, std::size_t bytes) {
      text = trimmed(from, bytes);
      from += bytes;
    }
    void operator()(const char*, auto& numbers) {
      std::memcpy(&numbers, from, sizeof numbers);
      from += sizeof numbers;
    }
  };

  std::size_t width_;
  Columns columns_;
  std::size_t size_;
  Object compound_;
};

/// No time stamps: two saves of one state are the same bytes. No space but what is asked for, and at once.
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

Shape shape_of(const std::vector<std::int64_t>& dims) {
  switch (dims.size()) {
    case 1:
      return {dims[0]};
    case 2:
      return {dims[0], dims[1]};
    case 3:
      return {dims[0], dims[1], dims[2]};
    case 4:
      return {dims[0], dims[1], dims[2], dims[3]};
    default:
      return {};
  }
}

std::vector<std::int64_t> dims_of(const Shape& shape) {
  std::vector<std::int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return dims;
}

std::string version() {
  prepare_library();
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

Object::~Object() { close(); }

bool Object::close() {
  const Id id = std::exchange(id_, -1);
  return id < 0 || close_(id) >= 0;
}

struct File::Kinds {
  Object contiguous_datasets = contiguous(), scalar{H5Screate(H5S_SCALAR), H5Sclose};
  const Object& type(DType type) {
    Object& made = types[type];
    if (!made) made = type_of(type);
    return made;
  }
  const Object& text(std::size_t size) {
    Object& made = texts[size];
    if (!made) made = text_type(size);
    return made;
  }

 private:
  std::map<DType, Object> types;
  std::map<std::size_t, Object> texts;
};

File::File(std::filesystem::path path, Exit blame, const Parallel* parallel)
    : path_(std::move(path)),
      blame_(blame),
      parallel_(parallel),
      kinds_((prepare_library(), std::make_unique<Kinds>())) {}
File::File(File&&) noexcept = default;
File::~File() = default;

Object::Id File::checked(Object::Id id, std::string_view doing) const {
  if (id < 0) throw Error(blame_, fmt::format("{}: {}: {}", path_.string(), doing, last_error()));
  return id;
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
  file.take(H5Fcreate(path.c_str(), H5F_ACC_EXCL, root.id(), access.id()), "cannot be made");
  return file;
}

File File::open(const std::filesystem::path& path, const Parallel* parallel) {
  File file(path, Exit::file, parallel);
  file.take(H5Fopen(path.c_str(), H5F_ACC_RDONLY, file.access().id()), "cannot be read as HDF5");
  return file;
}

File File::open_to_write(const std::filesystem::path& path, const Parallel& parallel, std::int64_t datasets) {
  File file(path, Exit::environment, &parallel);
  file.take(H5Fopen(path.c_str(), H5F_ACC_RDWR, file.access_to_write(datasets).id()), "cannot be opened to write");
  return file;
}

void File::take(Object::Id opened, std::string_view otherwise) {
  file_ = Object(checked(opened, otherwise), H5Fclose);
  if (parallel_) parallel_->tell_unknown(opened);
}

void File::close() {
  open_.close();
  open_path_.clear();
  if (!file_.close()) checked(-1, "cannot be closed");
}

void File::add_groups(const std::string& path) {
  const Object properties(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  H5Pset_obj_track_times(properties.id(), false);
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string group = path.substr(0, slash);
    if (!has(group))
      Object(checked(H5Gcreate2(file_.id(), group.c_str(), H5P_DEFAULT, properties.id(), H5P_DEFAULT), group),
             H5Gclose);
    if (slash == std::string::npos) return;
  }
}

Dataset File::add_dataset(const std::string& path, const Shape& shape, DType type) {
  const Object space = space_of(dims_of(shape));
  Object data(checked(H5Dcreate2(file_.id(), path.c_str(), kinds_->type(type).id(), space.id(), H5P_DEFAULT,
                                 kinds_->contiguous_datasets.id(), H5P_DEFAULT),
                      path),
              H5Dclose);
  const haddr_t offset = H5Dget_offset(data.id());
  open_ = std::move(data);
  open_path_ = path;
  if (offset == HADDR_UNDEF) throw Error(Exit::internal, path + ": has no place in " + path_.string());
  return {shape, type, static_cast<std::int64_t>(offset)};
}

namespace {

/// A range of elements in row-major order as boxes, at most 2 N - 1 of them in N axes: part of a row, whole rows, part
/// of a row. Adds those behind `axis` to the selection of a dataspace.
class Boxes {
 public:
  explicit Boxes(Object::Id space) : space_(space) {
    hsize_t dims[H5S_MAX_RANK];
    dims_.assign(dims, dims + std::max(0, H5Sget_simple_extent_dims(space, dims, nullptr)));
    begin_.assign(dims_.size(), 0);
    H5Sselect_none(space);
  }
  void add(hsize_t first, hsize_t count, std::size_t axis = 0) {
    hsize_t row = 1;  // elements that an index of this axis stands for
    for (std::size_t inner = axis + 1; inner < dims_.size(); ++inner) row *= dims_[inner];
    if (const hsize_t before = first % row; before != 0 && count > 0) {
      const hsize_t part = std::min(count, row - before);
      begin_[axis] = first / row;
      add(before, part, axis + 1);
      first += part;
      count -= part;
    }
    begin_[axis] = first / row;
    if (count >= row) select(axis, count / row);
    begin_[axis] += count / row;
    if (count % row != 0) add(0, count % row, axis + 1);
    begin_[axis] = 0;
  }

 private:
  void select(std::size_t axis, hsize_t indices) {
    std::vector<hsize_t> counts(dims_.size(), 1);
    counts[axis] = indices;
    std::copy(dims_.begin() + static_cast<std::ptrdiff_t>(axis) + 1, dims_.end(),
              counts.begin() + static_cast<std::ptrdiff_t>(axis) + 1);
    H5Sselect_hyperslab(space_, H5S_SELECT_OR, begin_.data(), nullptr, counts.data(), nullptr);
  }

  Object::Id space_;
  std::vector<hsize_t> dims_, begin_;
};

/// What H5Dwrite and H5Dread are told of elements: their places in the file, and as many in memory, one after another.
struct Selection {
  Object type, file, memory;
  Selection(Object::Id data, std::span<const ElementRange> ranges)
      : type(H5Dget_type(data), H5Tclose), file(H5Dget_space(data), H5Sclose) {
    std::int64_t count = 0;
    Boxes boxes(file.id());
    for (const ElementRange& range : ranges) {
      boxes.add(static_cast<hsize_t>(range.first), static_cast<hsize_t>(range.count));
      count += range.count;
    }
    memory = space_of({std::max<std::int64_t>(count, 1)});
    if (count == 0) H5Sselect_none(memory.id());
  }
};

}  // namespace

void File::write(const std::string& path, std::span<const ElementRange> ranges, const void* from) {
  const Object::Id data = at(path), how = parallel_ ? parallel_->properties(Parallel::Transfer::write) : H5P_DEFAULT;
  const Selection selection(data, ranges);
  checked(H5Dwrite(data, selection.type.id(), selection.memory.id(), selection.file.id(), how, from), path);
}

void File::read(const std::string& path, std::span<const ElementRange> ranges, void* to) const {
  const Object::Id data = at(path), how = parallel_ ? parallel_->properties(Parallel::Transfer::read) : H5P_DEFAULT;
  const Selection selection(data, ranges);
  checked(H5Dread(data, selection.type.id(), selection.memory.id(), selection.file.id(), how, to), path);
}

Object::Id File::at(const std::string& object) const {
  if (!open_ || open_path_ != object) {
    open_ = Object(checked(H5Oopen(file_.id(), object.c_str(), H5P_DEFAULT), object), H5Oclose);
    open_path_ = object;
  }
  return open_.id();
}

void File::write_attribute(const std::string& object, const char* name, Object::Id type, Object::Id space,
                           const void* data) {
  const Object attribute(
      checked(H5Acreate2(at(object), name, type, space, H5P_DEFAULT, H5P_DEFAULT), object + "@" + name), H5Aclose);
  checked(H5Awrite(attribute.id(), type, data), object + "@" + name);
}

void File::set(const std::string& object, const char* name, std::string_view text) {
  const std::string bytes(text.empty() ? std::string_view("\0", 1) : text);
  write_attribute(object, name, kinds_->text(bytes.size()).id(), kinds_->scalar.id(), bytes.data());
}
void File::set(const std::string& object, const char* name, std::int64_t value) {
  write_attribute(object, name, H5T_STD_I64LE, kinds_->scalar.id(), &value);
}
void File::set(const std::string& object, const char* name, std::uint64_t value) {
  write_attribute(object, name, H5T_STD_U64LE, kinds_->scalar.id(), &value);
}
void File::set(const std::string& object, const char* name, double value) {
  write_attribute(object, name, H5T_IEEE_F64LE, kinds_->scalar.id(), &value);
}
void File::set(const std::string& object, const char* name, const std::vector<std::int64_t>& values) {
  write_attribute(object, name, H5T_STD_I64LE, space_of({std::ssize(values)}).id(), values.data());
}

void File::add_contiguous(const std::string& path, Object::Id type, std::size_t elements) {
  const Object space = space_of({static_cast<std::int64_t>(elements)});
  const Object data(checked(H5Dcreate2(file_.id(), path.c_str(), type, space.id(), H5P_DEFAULT,
                                       kinds_->contiguous_datasets.id(), H5P_DEFAULT),
                            path),
                    H5Dclose);
}

void File::write_whole(const std::string& path, Object::Id type, const void* data) {
  const Object whole(checked(H5Dopen2(file_.id(), path.c_str(), H5P_DEFAULT), path), H5Dclose);
  checked(H5Dwrite(whole.id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), path);
}

void File::add_table(const std::string& path, std::size_t rows, std::size_t width) {
  add_contiguous(path, RowType(width, Columns::all).id(), rows);
}

void File::write_table(const std::string& path, const std::vector<TableRow>& rows, std::size_t width) {
  const RowType type(width, Columns::all);
  std::vector<char> bytes(rows.size() * type.size(), '\0');
  char* at_row = bytes.data();
  for (const TableRow& row : rows) type.encode(row, std::exchange(at_row, at_row + type.size()));
  write_whole(path, type.id(), bytes.data());
}

void File::add_numbers(const std::string& path, std::size_t count) { add_contiguous(path, H5T_STD_U64LE, count); }

void File::write_numbers(const std::string& path, const std::vector<std::uint64_t>& numbers) {
  write_whole(path, H5T_STD_U64LE, numbers.data());
}

bool File::has(const std::string& path) const {
  return path == "/" || (open_ && path == open_path_) || H5Lexists(file_.id(), path.c_str(), H5P_DEFAULT) > 0;
}
bool File::has(const std::string& object, const char* attribute) const { return H5Aexists(at(object), attribute) > 0; }

std::int64_t File::links(const std::string& group) const {
  H5G_info_t about{};
  checked(H5Gget_info(at(group), &about), group);
  return static_cast<std::int64_t>(about.nlinks);
}

std::optional<Dataset> File::find_dataset(const std::string& path) const {
  // At once as what it should be: to ask first takes as long.
  Object found(H5Dopen2(file_.id(), path.c_str(), H5P_DEFAULT), H5Dclose);
  if (!found && !has(path)) return std::nullopt;
  if (found) {
    open_ = std::move(found);
    open_path_ = path;
  }
  return dataset(path);
}

std::int64_t File::place(const std::string& path) const {
  const haddr_t offset = H5Dget_offset(at(path));
  if (offset == HADDR_UNDEF) throw Error(blame_, path_.string() + ": " + path + " has no place");
  return static_cast<std::int64_t>(offset);
}

Dataset File::dataset(const std::string& path) const {
  const Object::Id data = at(path);
  const Object space(checked(H5Dget_space(data), path), H5Sclose), type(checked(H5Dget_type(data), path), H5Tclose);
  const auto stored = std::ranges::find_if(
      stored_types, [&](DType known) { return H5Tequal(type.id(), kinds_->type(known).id()) > 0; });
  if (stored == std::end(stored_types))
    throw Error(Exit::file, path_.string() + ": " + path + " has a type that no checkpoint has");
  hsize_t dims[H5S_MAX_RANK];
  const int rank = H5Sget_simple_extent_ndims(space.id());
  const haddr_t offset = H5Dget_offset(data);
  if (rank < 1 || rank > 3 || offset == HADDR_UNDEF)
    throw Error(Exit::file, path_.string() + ": " + path + " is no contiguous tensor of 1 to 3 axes");
  H5Sget_simple_extent_dims(space.id(), dims, nullptr);
  return {shape_of(std::vector<std::int64_t>(dims, dims + rank)), *stored, static_cast<std::int64_t>(offset)};
}

std::int64_t File::attribute_elements(const std::string& object, const char* name) const {
  const Object attribute(checked(H5Aopen(at(object), name, H5P_DEFAULT), object + "@" + name), H5Aclose);
  const Object space(checked(H5Aget_space(attribute.id()), object + "@" + name), H5Sclose);
  return H5Sget_simple_extent_npoints(space.id());
}

void File::read_attribute(const std::string& object, const char* name, Object::Id type, std::int64_t count,
                          void* data) const {
  const std::string what = object + "@" + name;
  if (attribute_elements(object, name) != count)
    throw Error(Exit::file, path_.string() + ": " + what + " has another size");
  const Object attribute(checked(H5Aopen(at(object), name, H5P_DEFAULT), what), H5Aclose);
  const Object stored(checked(H5Aget_type(attribute.id()), what), H5Tclose);
  if (H5Tequal(stored.id(), type) <= 0) throw Error(Exit::file, path_.string() + ": " + what + " has another type");
  checked(H5Aread(attribute.id(), type, data), what);
}

std::string File::text(const std::string& object, const char* name) const {
  const std::string what = object + "@" + name;
  const Object attribute(checked(H5Aopen(at(object), name, H5P_DEFAULT), what), H5Aclose);
  const Object type(checked(H5Aget_type(attribute.id()), what), H5Tclose);
  if (H5Tget_class(type.id()) != H5T_STRING || H5Tis_variable_str(type.id()) != 0)
    throw Error(Exit::file, path_.string() + ": " + what + " is no text");
  std::string bytes(H5Tget_size(type.id()), '\0');
  checked(H5Aread(attribute.id(), type.id(), bytes.data()), what);
  return trimmed(bytes.data(), bytes.size());
}

void File::get(const std::string& object, const char* name, std::int64_t& value) const {
  read_attribute(object, name, H5T_STD_I64LE, 1, &value);
}
void File::get(const std::string& object, const char* name, std::uint64_t& value) const {
  read_attribute(object, name, H5T_STD_U64LE, 1, &value);
}
void File::get(const std::string& object, const char* name, double& value) const {
  read_attribute(object, name, H5T_IEEE_F64LE, 1, &value);
}
void File::get(const std::string& object, const char* name, std::vector<std::int64_t>& values) const {
  values.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, attribute_elements(object, name))));
  read_attribute(object, name, H5T_STD_I64LE, std::ssize(values), values.data());
}

std::vector<TableRow> File::table(const std::string& path) const {
  const Object data(checked(H5Dopen2(file_.id(), path.c_str(), H5P_DEFAULT), path), H5Dclose);
  const Object stored(checked(H5Dget_type(data.id()), path), H5Tclose),
      space(checked(H5Dget_space(data.id()), path), H5Sclose);
  const std::int64_t rows = H5Sget_simple_extent_npoints(space.id());
  const RowType type = RowType::like(stored.id());
  if (rows < 0 || H5Tequal(stored.id(), type.id()) <= 0)
    throw Error(Exit::file, path_.string() + ": " + path + " is no table of digests");
  std::vector<char> bytes(static_cast<std::size_t>(rows) * type.size());
  checked(H5Dread(data.id(), stored.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()), path);
  std::vector<TableRow> table;
  for (const char* row = bytes.data(); row != bytes.data() + bytes.size(); row += type.size())
    table.push_back(type.decode(row));
  return table;
}

std::vector<std::uint64_t> File::numbers(const std::string& path) const {
  const Object data(checked(H5Dopen2(file_.id(), path.c_str(), H5P_DEFAULT), path), H5Dclose);
  const Object stored(checked(H5Dget_type(data.id()), path), H5Tclose),
      space(checked(H5Dget_space(data.id()), path), H5Sclose);
  const std::int64_t count = H5Sget_simple_extent_npoints(space.id());
  if (count < 0 || H5Tequal(stored.id(), H5T_STD_U64LE) <= 0)
    throw Error(Exit::file, path_.string() + ": " + path + " is no row of numbers");
  std::vector<std::uint64_t> numbers(static_cast<std::size_t>(count));
  checked(H5Dread(data.id(), stored.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data()), path);
  return numbers;
}

}  // namespace tessera::hdf5
