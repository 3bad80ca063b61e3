#include "io/convert/quantize_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/config/keys.hpp"
#include "io/convert/tensor_quantizer.hpp"
#include "io/files/json_text.hpp"
#include "io/files/new_file.hpp"
#include "io/hdf5/file.hpp"

namespace tessera {
namespace {

struct Sides {
  bool rowwise = false, columnwise = false;
};

Sides sides_of(const ChosenTensor& t) {
  const FormatTraits format = traits_of(t.format);
  return {format.takes(Side::rowwise, t.matrix()), format.takes(Side::columnwise, t.matrix())};
}

/// Whether a name can be the path of an HDF5 group: parts between slashes, none of them empty, "." or "..".
bool names_a_group(const std::string& name) {
  if (name.find('\0') != std::string::npos) return false;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = name.find('/', begin);
    const std::string part = name.substr(begin, end == std::string::npos ? end : end - begin);
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

/// The tensor one of whose arrays would have the path of `name`'s group; empty if there is none.
std::optional<std::string> displaced(const std::string& name, const std::vector<ChosenTensor>& chosen) {
  static const std::set<std::string> arrays = {"rowwise_data", "rowwise_scales", "columnwise_data", "columnwise_scales",
                                               "amax"};
  // Every prefix of the name is tested, since a tensor below the path of an array collides too.
  for (std::size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1)) {
    const std::string first = name.substr(at + 1, name.find('/', at + 1) - at - 1), parent = name.substr(0, at);
    const auto same = [&](const ChosenTensor& t) { return t.source.name == parent; };
    if (arrays.contains(first) && std::any_of(chosen.begin(), chosen.end(), same)) return parent;
  }
  return std::nullopt;
}

/// Why a tensor cannot be quantized; empty if it can.
std::optional<std::string> obstacle(FormatId format, const SourceTensor& t) {
  const FormatTraits traits = traits_of(format);
  if (!t.unreadable.empty()) return t.shape.rank() > 0 ? t.shape.text() + " is " + t.unreadable : t.unreadable;
  if (!names_a_group(t.name)) return "its name cannot be that of a group in HDF5";
  if (t.shape.rank() != 2 && t.shape.rank() != 3)
    return fmt::format("{} is neither a matrix nor a stack of matrices", t.shape.text());
  if (t.type != DType::f32 && t.type != DType::bf16)
    return fmt::format("{} is of type {}, neither fp32, fp16 nor bf16", t.shape.text(), name_of(t.type));
  if (t.shape.elements() == 0) return fmt::format("{} is empty", t.shape.text());
  if (traits.by_lines)
    return fmt::format("{} has a scale for each row and column, which no file holds: use nvfp4_1d", traits.name);
  const Sides sides = sides_of({t, format, t.shape[-2]});
  if (!sides.rowwise && !sides.columnwise)
    return fmt::format("{} suits neither direction of {}: blocks of {} x {} do not divide it", t.shape.text(),
                       traits.name, traits.block.rows, traits.block.columns);
  return std::nullopt;
}

std::string without_slash(const std::string& name) { return name.starts_with('/') ? name.substr(1) : name; }

/// ", did you mean a or b or c?", or empty.
std::string near_misses(const std::string& name, const std::vector<SourceTensor>& all) {
  constexpr std::size_t most = 3;
  std::vector<std::string> names;
  for (const SourceTensor& t : all) names.push_back(t.name);
  const std::vector<std::string> near = near_words(without_slash(name), names, most);
  return near.empty() ? "" : fmt::format(", did you mean {}?", fmt::join(near, " or "));
}

/// Returns `list`; throws Error{file} if the group of one tensor would have the path of another's array.
std::vector<ChosenTensor> apart(const QuantizeFileOptions& options, std::vector<ChosenTensor> list) {
  for (const ChosenTensor& t : list)
    if (const auto other = displaced(t.source.name, list))
      throw Error(Exit::file, fmt::format("{}: {}: its group would take the place of an array of {}; name the tensors "
                                          "to quantize with --tensor",
                                          options.in.string(), t.source.name, *other));
  return list;
}

/// The tensors that the options name, each once.
std::vector<SourceTensor> named(const QuantizeFileOptions& options, const std::vector<SourceTensor>& all) {
  std::vector<SourceTensor> list;
  for (const std::string& name : options.tensors) {
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const SourceTensor& t) { return t.name == name || t.name == without_slash(name); });
    if (found == all.end())
      throw Error(Exit::file, fmt::format("{}: {}: there is no such tensor among its {}{}", options.in.string(), name,
                                          all.size(), near_misses(name, all)));
    if (std::ranges::find(list, found->name, &SourceTensor::name) == list.end()) list.push_back(*found);
  }
  return list;
}

/// Tensors to quantize to one format.
std::vector<ChosenTensor> chosen_of(FormatId format, const QuantizeFileOptions& options,
                                    std::vector<SkippedTensor>& skipped) {
  const std::vector<SourceTensor> all = list_tensors(options.in);
  std::vector<ChosenTensor> list;
  for (const SourceTensor& t : named(options, all)) {
    if (const auto why = obstacle(format, t))
      throw Error(Exit::file, fmt::format("{}: {}: {}", options.in.string(), t.name, *why));
    list.push_back({t, format, t.shape[-2]});
  }
  if (!options.tensors.empty()) return list;
  for (const SourceTensor& t : all) {
    if (t.shape.rank() != 2 && t.shape.rank() != 3) continue;
    if (const auto why = obstacle(format, t))
      skipped.push_back({t.name, *why});
    else
      list.push_back({t, format, t.shape[-2]});
  }
  if (list.empty()) {
    const std::string first = skipped.empty() ? "no matrix is among them" : skipped[0].name + ": " + skipped[0].reason;
    throw Error(Exit::file, fmt::format("{}: none of its {} tensors suits {}; {}", options.in.string(), all.size(),
                                        traits_of(format).name, first));
  }
  return list;
}

/// The canonical name of a tensor of a checkpoint's weights; an expert's dataset has that of the projection.
std::string canonical_name(const hdf5::File& file, const std::string& path) {
  constexpr std::string_view slot = "model/";
  if (file.has(path, "canonical")) return file.text(path, "canonical");
  return path.starts_with(slot) ? path.substr(slot.size()) : path;
}

/// Tensors to quantize as training holds them.
std::vector<ChosenTensor> chosen_of(const TrainedWeights& weights, const QuantizeFileOptions& options,
                                    std::vector<SkippedTensor>&) {
  const std::vector<SourceTensor> all = list_tensors(options.in);
  const hdf5::File file = hdf5::File::open(options.in);
  std::vector<ChosenTensor> list;
  for (const SourceTensor& t : options.tensors.empty() ? all : named(options, all)) {
    const auto found = weights.find(canonical_name(file, t.name));
    if (found != weights.end())
      list.push_back({t, found->second.format, found->second.rows});
    else if (!options.tensors.empty())
      throw Error(Exit::file, fmt::format("{}: {}: training does not hold it as codes; --format quantizes it to a "
                                          "format of your choice",
                                          options.in.string(), t.name));
  }
  return list;
}

std::vector<ChosenTensor> chosen(const QuantizeFileOptions& options, std::vector<SkippedTensor>& skipped) {
  return apart(options, std::visit([&](const auto& formats) { return chosen_of(formats, options, skipped); },
                                   options.formats));
}

Shape stacked(const ChosenTensor& t, Shape of_member) {
  return t.source.shape.rank() == 3 ? Shape{t.source.shape[0], of_member[0], of_member[1]} : of_member;
}

std::string array_of(const ChosenTensor& t, Side side, const char* what) {
  return t.source.name + "/" + name_of(side) + "_" + what;
}

/// Adds the group of one tensor, with datasets that have no content yet.
void add_tensor(hdf5::File& file, const ChosenTensor& t, Precision precision) {
  const SourceTensor& source = t.source;
  file.add_groups(source.name);
  file.set(source.name, "format", traits_of(t.format).name);
  file.set(source.name, "shape", source.shape.dims());
  const std::string_view wide = source.encoding == Encoding::half ? "fp16" : "fp32";
  file.set(source.name, "source_dtype", source.type == DType::f32 ? wide : "bf16");
  file.set(source.name, "bf16_first", std::int64_t{source.type == DType::bf16 || precision == Precision::bf16_first});
  const Sides sides = sides_of(t);
  const FormatTraits format = traits_of(t.format);
  for (Side side : {Side::rowwise, Side::columnwise}) {
    if (side == Side::rowwise ? !sides.rowwise : !sides.columnwise) continue;
    file.add_dataset(array_of(t, side, "data"), stacked(t, format.data_shape(side, t.matrix())), DType::u8);
    if (!format.scaled) continue;
    file.add_dataset(array_of(t, side, "scales"), stacked(t, format.scale_shape(side, t.matrix())), format.scale_type);
  }
  file.add_dataset(source.name + "/amax", source.shape.rank() == 3 ? Shape{source.shape[0]} : Shape{}, DType::f32);
}

/// Says that training holds the weights so, of which step they are, and the role of each.
void describe_trained(hdf5::File& file, const std::vector<ChosenTensor>& tensors, const std::filesystem::path& from) {
  const hdf5::File source = hdf5::File::open(from);
  file.set("/", "as_trained", std::int64_t{1});
  file.set("/", "step", source.get<std::int64_t>("/", "step"));
  for (const ChosenTensor& t : tensors) file.set(t.source.name, "role", source.text(t.source.name, "role"));
}

void lay_out(const std::filesystem::path& path, const std::vector<ChosenTensor>& tensors,
             const QuantizeFileOptions& options) {
  hdf5::File file = hdf5::File::create(path);
  for (const ChosenTensor& t : tensors) add_tensor(file, t, options.precision);
  if (std::holds_alternative<TrainedWeights>(options.formats)) describe_trained(file, tensors, options.in);
  file.close();
}

QuantizedPlaces places_of(const hdf5::File& file, const ChosenTensor& t) {
  QuantizedPlaces places;
  for (Side side : {Side::rowwise, Side::columnwise}) {
    QuantizedPlaces::Side& place = places.sides[static_cast<std::size_t>(side)];
    place.made = file.has(array_of(t, side, "data"));
    if (!place.made) continue;
    place.data = file.offset_of(array_of(t, side, "data"));
    const std::string scales = array_of(t, side, "scales");
    if (file.has(scales)) place.scales = file.offset_of(scales);
  }
  places.amax = file.offset_of(t.source.name + "/amax");
  return places;
}

nlohmann::json number(double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(); }

nlohmann::ordered_json exponents(const TensorReport& t) {
  nlohmann::ordered_json counts = nlohmann::ordered_json::object();
  for (const auto& [exponent, count] : t.scale_exponents)
    counts[exponent == zero_scale ? "zero" : std::to_string(exponent)] = count;
  return counts;
}

}  // namespace

QuantizeReport quantize_file(const QuantizeFileOptions& options) {
  if (const auto* format = std::get_if<FormatId>(&options.formats); format && traits_of(*format).plain)
    throw Error(Exit::usage, fmt::format("{} is no quantized format", traits_of(*format).name));
  NewFile unfinished(options.out);
  QuantizeReport report;
  const std::vector<ChosenTensor> tensors = chosen(options, report.skipped);
  std::vector<SourceTensor> sources;
  for (const ChosenTensor& t : tensors) sources.push_back(t.source);
  check_digests(options.in, sources);
  lay_out(unfinished.path(), tensors, options);
  std::vector<QuantizedPlaces> places;
  for (const hdf5::File made = hdf5::File::open(unfinished.path()); const ChosenTensor& t : tensors)
    places.push_back(places_of(made, t));
  PosixFile& out = unfinished.hold();
  const PosixFile in(options.in, PosixFile::Mode::read);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    report.tensors.push_back(quantize_tensor({tensors[i], in, out, places[i], options}));
  unfinished.commit();
  return report;
}

void make_quantized_file(const QuantizeFileOptions& options) {
  std::vector<SkippedTensor> skipped;
  lay_out(options.out, chosen(options, skipped), options);
  PosixFile out(options.out, PosixFile::Mode::write);
  out.reserve(out.size());
}

namespace {

/// The tensors of one part, all parts having about equal numbers of elements: the largest tensor first, each goes to
/// the part with fewest elements.
std::vector<ChosenTensor> share(std::vector<ChosenTensor> tensors, int part, int parts) {
  const auto elements = [](const ChosenTensor& t) { return t.source.shape.elements(); };
  std::ranges::stable_sort(tensors, std::greater<>(), elements);
  std::vector<std::int64_t> load(static_cast<std::size_t>(parts), 0);
  std::vector<ChosenTensor> own;
  for (ChosenTensor& t : tensors) {
    const auto least = std::ranges::min_element(load);
    *least += elements(t);
    if (least - load.begin() == part) own.push_back(std::move(t));
  }
  return own;
}

}  // namespace

void fill_quantized_file(const QuantizeFileOptions& options, int part, int parts) {
  std::vector<SkippedTensor> skipped;
  const PosixFile in(options.in, PosixFile::Mode::read);
  PosixFile out(options.out, PosixFile::Mode::write);
  const hdf5::File made = hdf5::File::open(options.out);
  for (const ChosenTensor& t : share(chosen(options, skipped), part, parts))
    quantize_tensor({t, in, out, places_of(made, t), options});
  out.sync();
}

std::string QuantizeReport::json() const {
  nlohmann::ordered_json all = {{"tensors", nlohmann::ordered_json::array()},
                                {"skipped", nlohmann::ordered_json::array()}};
  for (const TensorReport& t : tensors) {
    all["tensors"].push_back({{"name", t.name},
                              {"shape", t.shape.dims()},
                              {"format", t.format},
                              {"directions", t.directions},
                              {"snr_db", number(t.snr_db)},
                              {"max_rel_error", number(t.max_rel_error)},
                              {"zeros", number(t.zeros)},
                              {"underflow", number(t.underflow)},
                              {"saturated", number(t.saturated)},
                              {"non_finite", t.non_finite},
                              {"scale_exponents", exponents(t)}});
  }
  for (const SkippedTensor& s : skipped) all["skipped"].push_back({{"name", s.name}, {"reason", s.reason}});
  return json_text(all);
}

std::string QuantizeReport::text() const {
  std::string lines;
  for (const TensorReport& t : tensors) {
    const std::string snr = std::isnan(t.snr_db) ? "none" : fmt::format("{:.2f} dB", t.snr_db);
    lines += fmt::format(
        "{} {} {} {}: SNR {}, max relative error {:.3g}, zeros {:.3g}, underflow {:.3g}, saturated {:.3g}{}\n", t.name,
        t.shape.text(), t.format, fmt::join(t.directions, " + "), snr, t.max_rel_error, t.zeros, t.underflow,
        t.saturated, t.non_finite > 0 ? fmt::format(", NOT FINITE {}", t.non_finite) : "");
    lines += "  blocks by scale:";
    for (const auto& [exponent, count] : t.scale_exponents)
      lines += fmt::format(" {} {}", exponent == zero_scale ? "zero" : fmt::format("2^{}", exponent), count);
    lines += "\n";
  }
  for (const SkippedTensor& s : skipped) lines += fmt::format("{}: skipped: {}\n", s.name, s.reason);
  return lines;
}

}  // namespace tessera
