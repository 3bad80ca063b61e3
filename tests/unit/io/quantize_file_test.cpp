#include "io/convert/quantize_file.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "io/convert/safetensors.hpp"
#include "io/files/posix_file.hpp"
#include "io/hdf5/file.hpp"
#include "tests/reference/quantize.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/quantized.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using formats::Matrix;

struct Folder {
  fs::path path = fs::temp_directory_path() / ("tessera_quantize_" + std::to_string(::getpid()));
  Folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  fs::path operator/(const char* name) const { return path / name; }
};

// Writes tensors of fp32 values, some narrowed to bf16, as a safetensors file.
fs::path written(const fs::path& path, std::vector<SourceTensor> tensors,
                 const std::vector<std::vector<float>>& values) {
  SafetensorsWriter writer(path, std::move(tensors));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::vector<bf16> narrow;
    for (float v : values[i]) narrow.push_back(bf16(v));
    const bool wide = writer.tensors()[i].type == DType::f32;
    const std::int64_t bytes = std::ssize(values[i]) * (wide ? 4 : 2);
    const char* from =
        wide ? reinterpret_cast<const char*>(values[i].data()) : reinterpret_cast<const char*>(narrow.data());
    writer.write(i, bytes / 2, from + bytes / 2, bytes - bytes / 2);  // in pieces, the last first
    writer.write(i, 0, from, bytes / 2);
  }
  writer.finish();
  return path;
}

template <class T>
std::vector<T> read(const fs::path& path, const std::string& name) {
  const hdf5::Dataset data = hdf5::File::open(path).dataset(name);
  std::vector<T> values(static_cast<std::size_t>(data.shape.elements()));
  PosixFile(path, PosixFile::Mode::read)
      .read(data.offset, values.data(), std::ssize(values) * static_cast<std::int64_t>(sizeof(T)));
  return values;
}

template <class L>
struct TypesOf;
template <class First, class... F>
struct TypesOf<formats::FormatList<First, F...>> {
  using type = ::testing::Types<F...>;
};  // bf16 is first
template <class F>
struct QuantizeFile : ::testing::Test {
  Folder folder;
};
TYPED_TEST_SUITE(QuantizeFile, TypesOf<formats::Registry>::type);

TYPED_TEST(QuantizeFile, EqualsTheReferenceInPanelsOfAnySize) {
  using F = TypeParam;
  if (formats::by_lines<F>) GTEST_SKIP() << "no file has it: RefusesScalesOfLines";
  const Matrix m{544, 1120};  // with the least panel: two rows of panels, three columns of them
  const auto x = test::wild(2 * m.elements(), 3, true);
  const fs::path in =
      written(this->folder / "in.safetensors", {{"experts.up", {2, m.rows, m.columns}, DType::f32, 0, ""}}, {x});
  for (const std::int64_t panel : {std::int64_t{1}, std::int64_t{1} << 24}) {
    const fs::path out = this->folder / ("out" + std::to_string(panel) + ".h5").c_str();
    const auto report = quantize_file({in, out, {}, formats::id_of<F>, Precision::bf16_first, panel});
    ASSERT_EQ(report.tensors.size(), 1u);
    EXPECT_EQ(report.tensors[0].directions, (std::vector<std::string>{"rowwise", "columnwise"}));
    for (Side side : {Side::rowwise, Side::columnwise}) {
      std::vector<std::uint8_t> data;
      std::vector<typename F::Scale> scales;
      for (std::int64_t e = 0; e < 2; ++e) {
        const auto copy = reference::quantize<F>(
            side, m, reference::rounded_to_bf16({x.begin() + e * m.elements(), x.begin() + (e + 1) * m.elements()}));
        data.insert(data.end(), copy.data.begin(), copy.data.end());
        scales.insert(scales.end(), copy.scales.begin(), copy.scales.end());
      }
      const std::string path = std::string("experts.up/") + name_of(side);
      if constexpr (!F::scaled) {
        EXPECT_FALSE(hdf5::File::open(out).has(path + "_scales"));
      } else if constexpr (std::is_same_v<typename F::Scale, float>) {
        EXPECT_TRUE(test::same_bits(read<float>(out, path + "_scales"), scales));
      } else {
        EXPECT_TRUE(test::same_bits(read<std::uint8_t>(out, path + "_scales"), scales));
      }
      EXPECT_TRUE(test::same_bits(read<std::uint8_t>(out, path + "_data"), data))
          << F::name << " " << name_of(side) << " " << panel;
      EXPECT_EQ(hdf5::File::open(out).dataset(path + "_data").shape[0], 2);
    }
    const auto amax = read<float>(out, "experts.up/amax");
    for (std::int64_t e = 0; e < 2; ++e)
      EXPECT_EQ(
          amax[static_cast<std::size_t>(e)],
          reference::largest({2 * m.rows, m.columns}, reference::rounded_to_bf16(x), e * m.rows, m.rows, 0, m.columns));
    EXPECT_FALSE(fs::exists(out.string() + ".tmp"));
  }
}

TYPED_TEST(QuantizeFile, SaysHowWellItWent) {
  using F = TypeParam;
  if (formats::by_lines<F>) GTEST_SKIP() << "no file has it: RefusesScalesOfLines";
  const Matrix m{64, 96};
  auto x = test::uniform<float>(m.elements(), 8);
  x[5] = 0;
  const fs::path in = written(this->folder / "in.safetensors", {{"w", {m.rows, m.columns}, DType::bf16, 0, ""}}, {x});
  const auto report = quantize_file({in, this->folder / "out.h5", {"w"}, formats::id_of<F>}).tensors.at(0);
  const auto seen = reference::rounded_to_bf16(x);
  const auto copy = reference::quantize<F>(Side::rowwise, m, seen);
  const auto q =
      reference::dequantize<F>(Side::rowwise, m, copy, F::step);
  double signal = 0, noise = 0, worst = 0, zeros = 0;
  for (std::size_t i = 0; i < q.size(); ++i) {
    const double error = std::fabs(static_cast<double>(seen[i]) - q[i]);
    signal += static_cast<double>(seen[i]) * seen[i];
    noise += error * error;
    if (seen[i] != 0) worst = std::max(worst, error / std::fabs(seen[i]));
    zeros += q[i] == 0;
  }
  EXPECT_DOUBLE_EQ(report.snr_db, 10 * std::log10(signal / noise));
  EXPECT_DOUBLE_EQ(report.max_rel_error, worst);
  EXPECT_DOUBLE_EQ(report.zeros, zeros / static_cast<double>(q.size()));
  EXPECT_GT(report.snr_db, F::Element::bits == 4 ? 15 : 25);
  std::int64_t blocks = 0;
  for (const auto& [exponent, count] : report.scale_exponents) blocks += count;
  EXPECT_EQ(blocks, formats::blocks<F>(Side::rowwise, m).elements());
}

struct Files : ::testing::Test {
  Folder folder;
  const std::vector<float> matrix = test::uniform<float>(4096, 1);
  SourceTensor square(const char* name) { return {name, {64, 64}, DType::f32, 0, ""}; }
  FormatId mxfp8 = formats::id_of<formats::Mxfp8>;
  fs::path some() {
    return written(folder / "some.safetensors",
                   {{"a.matrix", {64, 64}, DType::f32, 0, ""},
                    {"b.rows_only", {33, 64}, DType::f32, 0, ""},
                    {"c.neither", {33, 33}, DType::f32, 0, ""},
                    {"d.vector", {64}, DType::f32, 0, ""},
                    {"e.bytes", {64, 32}, DType::u8, 0, ""}},
                   {test::uniform<float>(4096, 1), test::uniform<float>(33 * 64, 2), test::uniform<float>(33 * 33, 3),
                    test::uniform<float>(64, 4), std::vector<float>(1024)});
  }
  void expect_refusal(const QuantizeFileOptions& options, const std::string& word, Exit code = Exit::file) {
    try {
      quantize_file(options);
      ADD_FAILURE() << "accepted: " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      EXPECT_EQ(error.code(), code) << error.what();
    }
    EXPECT_FALSE(fs::exists(options.out) && options.out.filename() != "there.h5");
    EXPECT_FALSE(fs::exists(options.out.string() + ".tmp"));
  }
};

TEST_F(Files, TakesWhatSuitsAndListsTheRest) {
  const auto report = quantize_file({some(), folder / "out.h5", {}, mxfp8});
  ASSERT_EQ(report.tensors.size(), 2u);
  EXPECT_EQ(report.tensors[0].directions.size(), 2u);
  EXPECT_EQ(report.tensors[1].directions, std::vector<std::string>{"rowwise"});
  ASSERT_EQ(report.skipped.size(), 2u);
  EXPECT_EQ(report.skipped[0].name, "c.neither");
  EXPECT_NE(report.skipped[1].reason.find("u8"), std::string::npos);
  const auto json = nlohmann::json::parse(report.json());
  EXPECT_EQ(json["tensors"][1]["name"], "b.rows_only");
  EXPECT_EQ(json["tensors"][1]["shape"], (std::vector<int>{33, 64}));
  EXPECT_EQ(json["tensors"][0]["format"], "mxfp8");
  EXPECT_TRUE(json["tensors"][0]["scale_exponents"].is_object());
  EXPECT_FALSE(hdf5::File::open(folder / "out.h5").has("b.rows_only/columnwise_data"));
  EXPECT_EQ(hdf5::File::open(folder / "out.h5").text("a.matrix", "source_dtype"), "fp32");
}

TEST_F(Files, TellsPeopleTheSame) {
  const fs::path in = written(folder / "in.safetensors", {square("w")}, {matrix});
  const QuantizeReport report = quantize_file({in, folder / "out.h5", {}, mxfp8});
  const std::string text = report.text();
  EXPECT_NE(text.find("w [64,64] mxfp8 rowwise + columnwise: SNR"), std::string::npos) << text;
  for (const auto& [exponent, count] : report.tensors[0].scale_exponents)
    EXPECT_NE(text.find(fmt::format(" 2^{} {}", exponent, count)), std::string::npos) << text;
  const fs::path zeros = written(folder / "zeros.safetensors", {square("w")}, {std::vector<float>(4096)});
  EXPECT_NE(quantize_file({zeros, folder / "zeros.h5", {}, formats::id_of<formats::Nvfp4>}).text().find("zero 16"),
            std::string::npos);
}

TEST_F(Files, GroupsMayLieInsideEachOther) {
  const fs::path in =
      written(folder / "in.safetensors", {square("a"), square("a/b"), square("c/d/e")}, {matrix, matrix, matrix});
  for (const auto& names : std::vector<std::vector<std::string>>{{}, {"a/b", "a", "c/d/e", "a"}}) {
    const fs::path out = folder / (names.empty() ? "all.h5" : "named.h5");
    EXPECT_EQ(quantize_file({in, out, names, mxfp8}).tensors.size(), 3u);
    for (const char* name : {"a", "a/b", "c/d/e"})
      EXPECT_TRUE(hdf5::File::open(out).has(std::string(name) + "/rowwise_data")) << name;
  }
}

TEST_F(Files, RefusesNamesThatStandInEachOthersPlaces) {
  const fs::path in = written(folder / "in.safetensors",
                              {square("a"), square("a/amax"), square("b"), square("b/rowwise_data/c"), square("d//e")},
                              {matrix, matrix, matrix, matrix, matrix});
  expect_refusal({in, folder / "out.h5", {}, mxfp8}, "a/amax: its group would take the place of an array of a;");
  expect_refusal({in, folder / "out.h5", {"b/rowwise_data/c", "b"}, mxfp8}, "an array of b;");
  expect_refusal({in, folder / "out.h5", {"d//e"}, mxfp8}, "d//e: its name cannot be that of a group");
  EXPECT_EQ(quantize_file({in, folder / "out.h5", {"a/amax", "b"}, mxfp8}).tensors.size(), 2u);
}

TEST_F(Files, RefusesScalesOfLines) {
  const fs::path in = written(folder / "in.safetensors", {square("a")}, {matrix});
  constexpr FormatId rows = formats::id_of<formats::Nvfp4Row>;
  const std::string why = "a: nvfp4_row has a scale for each row and column, which no file holds: use nvfp4_1d";
  expect_refusal({in, folder / "out.h5", {"a"}, rows}, why);
  expect_refusal({in, folder / "out.h5", {}, rows}, "none of its 1 tensors suits nvfp4_row; " + why);
}

TEST_F(Files, WhatNobodyWritesAnyMoreIsClearedAway) {
  const fs::path in = written(folder / "in.safetensors", {square("w")}, {matrix}), left = folder / "out.h5.tmp";
  std::ofstream(left) << "left by a process that was killed";
  ::testing::internal::CaptureStderr();
  quantize_file({in, folder / "out.h5", {}, mxfp8});
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("did not reach its end"), std::string::npos);
  EXPECT_TRUE(hdf5::File::open(folder / "out.h5").has("w/rowwise_data"));
  EXPECT_FALSE(fs::exists(left));
}

TEST_F(Files, WhatAnotherWritesIsLeftAlone) {
  const fs::path in = written(folder / "in.safetensors", {square("w")}, {matrix}), other = folder / "out.h5.tmp";
  PosixFile held(other, PosixFile::Mode::replace);
  held.lock();
  try {
    quantize_file({in, folder / "out.h5", {}, mxfp8});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::environment);
    EXPECT_NE(std::string(error.what()).find("another process is making it"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(fs::exists(other));
  EXPECT_FALSE(fs::exists(folder / "out.h5"));
}

TEST_F(Files, ReadsHdf5AsWell) {
  const auto x = test::uniform<float>(64 * 64, 5);
  const fs::path in = folder / "in.h5";
  std::int64_t offset = 0;
  {
    hdf5::File file = hdf5::File::create(in);
    file.add_groups("model/layer");
    offset = file.add_dataset("model/layer/w", {64, 64}, DType::f32).offset;
    file.close();
    PosixFile(in, PosixFile::Mode::write).write(offset, x.data(), 64 * 64 * 4);
  }
  const auto report = quantize_file({in, folder / "out.h5", {"/model/layer/w"}, mxfp8, Precision::as_given});
  ASSERT_EQ(report.tensors.size(), 1u);
  EXPECT_TRUE(test::same_bits(read<std::uint8_t>(folder / "out.h5", "model/layer/w/rowwise_data"),
                              reference::quantize<formats::Mxfp8>(Side::rowwise, {64, 64}, x).data));
}

TEST_F(Files, RefusesWithReasonsAndLeavesNothing) {
  const fs::path in = some();
  expect_refusal({in, folder / "out.h5", {"nowhere"}, mxfp8}, "no such tensor");
  expect_refusal({in, folder / "out.h5", {}, formats::id_of<formats::Bf16>}, "no quantized format", Exit::usage);
  expect_refusal({in, folder / "out.h5", {"c.neither"}, mxfp8}, "[33,33]");
  expect_refusal({in, folder / "out.h5", {"d.vector"}, mxfp8}, "neither a matrix");
  expect_refusal({folder / "missing.safetensors", folder / "out.h5", {}, mxfp8}, "missing.safetensors");
  std::ofstream(folder / "there.h5") << "something";
  expect_refusal({in, folder / "there.h5", {}, mxfp8}, "exists already");
  fs::copy(in, folder / "renamed.h5");
  expect_refusal({folder / "renamed.h5", folder / "out.h5", {}, mxfp8}, "is no HDF5 file");
  fs::copy(in, folder / "strange.bin");
  expect_refusal({folder / "strange.bin", folder / "out.h5", {}, mxfp8}, "neither .safetensors nor .h5");
}

// A safetensors file of that header and payload.
fs::path raw(const fs::path& path, const std::string& header, const std::string& payload) {
  std::ofstream file(path, std::ios::binary);
  const std::uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header << payload;
  return path;
}

// Halves by their definition.
float value_of(std::uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                           : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                            : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>(half & 0x8000 ? -magnitude : magnitude);
}

TEST_F(Files, ReadsHalvesAsFp32) {
  std::vector<std::uint16_t> halves(1 << 16);
  std::iota(halves.begin(), halves.end(), std::uint16_t{0});
  const std::string bytes(reinterpret_cast<const char*>(halves.data()), halves.size() * 2);
  const fs::path in =
      raw(folder / "in.safetensors", R"({"w":{"dtype":"F16","shape":[256,256],"data_offsets":[0,131072]}})", bytes);
  const SourceTensor w = list_safetensors(in).at(0);
  EXPECT_EQ(w.type, DType::f32);
  const PosixFile file(in, PosixFile::Mode::read);
  for (const auto& [first, count] : {std::pair{0, 1 << 16}, std::pair{31743, 5001}, std::pair{7, 1}}) {
    std::vector<float> found(static_cast<std::size_t>(count));
    read_elements(file, w, first, count, found.data());
    for (int i = 0; i < count; ++i) {
      const auto half = static_cast<std::uint16_t>(first + i);
      const float wanted = value_of(half), value = found[static_cast<std::size_t>(i)];
      if (std::isnan(wanted))
        EXPECT_TRUE(std::isnan(value)) << half;
      else
        EXPECT_EQ(std::bit_cast<std::uint32_t>(value), std::bit_cast<std::uint32_t>(wanted)) << half;
    }
  }
}

TEST_F(Files, QuantizesHalvesLikeTheirFp32) {
  std::vector<std::uint16_t> halves(64 * 64);
  std::vector<float> wide;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<std::uint16_t>((i * 40503) % 0x7C00);
    wide.push_back(value_of(halves[i]));
  }
  const std::string bytes(reinterpret_cast<const char*>(halves.data()), halves.size() * 2);
  raw(folder / "in.safetensors", R"({"w":{"dtype":"F16","shape":[64,64],"data_offsets":[0,8192]}})", bytes);
  quantize_file({folder / "in.safetensors", folder / "out.h5", {}, mxfp8, Precision::as_given});
  EXPECT_TRUE(test::same_bits(read<std::uint8_t>(folder / "out.h5", "w/rowwise_data"),
                              reference::quantize<formats::Mxfp8>(Side::rowwise, {64, 64}, wide).data));
  EXPECT_EQ(hdf5::File::open(folder / "out.h5").text("w", "source_dtype"), "fp16");
}

TEST_F(Files, RefusesDamagedSafetensors) {
  const struct {
    const char* header;
    std::size_t payload;
    const char* word;
  } cases[] = {
      {"{", 0, "no JSON"},
      {"[]", 0, "no JSON object"},
      {R"({"w":{"dtype":"F32","shape":[2,2]}})", 16, "no dtype, shape and data_offsets"},
      {R"({"w":{"dtype":"F32","shape":[2,-2],"data_offsets":[0,16]}})", 16, "no dtype, shape and data_offsets"},
      {R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,12]}})", 12, "12 bytes for 4 elements"},
      {R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})", 8, "truncated"},
      {R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})", 20, "instead of"},
      {R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
       R"("v":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]}})",
       24, "overlap"},
      {R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
       R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})",
       16, "twice"},
      {R"({"w":{"dtype":"F32","shape":[4611686018427387903,4611686018427387903],"data_offsets":[0,16]}})", 16,
       "more elements"},
  };
  for (const auto& c : cases) {
    const fs::path in = raw(folder / "bad.safetensors", c.header, std::string(c.payload, '\0'));
    expect_refusal({in, folder / "out.h5", {}, mxfp8}, c.word);
  }
  std::ofstream(folder / "short.safetensors") << "abc";
  expect_refusal({folder / "short.safetensors", folder / "out.h5", {}, mxfp8}, "no safetensors file");
  std::ofstream(folder / "huge.safetensors") << std::string(64, '\x7F');
  expect_refusal({folder / "huge.safetensors", folder / "out.h5", {}, mxfp8}, "no safetensors file");
}

}  // namespace
}  // namespace tessera
