// Tile lists: which splats each tile draws, front to back by (depth, id).
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "host/raster.h"
#include "math/tiles.cuh"

using namespace spx_host;

namespace {

// ---- order by (depth, id) ----

// Bits of a real that sort as unsigned integers the way the reals do.
inline uint32_t sortable(float x) {
    const uint32_t bits = uint32_t(spx::bits_of(x));
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
inline uint64_t sortable(double x) {
    const uint64_t bits = uint64_t(spx::bits_of(x));
    return bits ^ (bits >> 63 ? ~uint64_t(0) : uint64_t(1) << 63);
}

template <class Key>
struct Entry {
    Key key;
    int32_t item;
};

// Stable least-significant-digit radix sort; passes in which all digits agree are skipped.
template <class Key>
void radix_sort(std::vector<Entry<Key>>& entries) {
    constexpr int DIGIT = 11;  // 2048 counters stay in the first-level cache
    std::vector<Entry<Key>> other(entries.size());
    for (unsigned shift = 0; shift < 8 * sizeof(Key); shift += DIGIT) {
        std::vector<size_t> starts(size_t(1) << DIGIT);
        const auto digit = [&](const Entry<Key>& e) {
            return size_t(e.key >> shift) & ((size_t(1) << DIGIT) - 1);
        };
        for (const auto& e : entries) ++starts[digit(e)];
        if (!entries.empty() && starts[digit(entries[0])] == entries.size()) continue;
        size_t sum = 0;
        for (auto& start : starts) {
            const size_t count = start;
            start = sum;
            sum += count;
        }
        for (const auto& e : entries) other[starts[digit(e)]++] = e;
        entries.swap(other);
    }
}

template <class T>
std::vector<int32_t> depth_order(const T* data, const int64_t* ids, int64_t n) {
    typedef decltype(sortable(T())) Key;
    std::vector<Entry<Key>> entries(n);
    for (int64_t i = 0; i < n; ++i)
        entries[i] = {sortable(data[i * SPLAT_COLUMNS + 9]), int32_t(i)};
    radix_sort(entries);
    std::vector<int32_t> order(n);
    for (int64_t i = 0; i < n; ++i) order[i] = entries[i].item;
    for (int64_t i = 0, j; i < n; i = j) {  // ties by id
        for (j = i + 1; j < n && entries[j].key == entries[i].key; ++j) {
        }
        if (j > i + 1)
            std::sort(order.begin() + i, order.begin() + j, [&](int32_t a, int32_t b) {
                return ids[a] != ids[b] ? ids[a] < ids[b] : a < b;
            });
    }
    return order;
}

// ---- depth intervals ----

template <class T>
struct Cell {
    spx::RayView<T> view;
    spx::CellFaces<T> faces;
    spx::TileGrid grid;
    const uint8_t* covered = nullptr;  // (tiles,), 0 where the faces do not count, or null

    int64_t tiles() const { return int64_t(grid.across) * grid.down; }

    // The interval of pixel `pixel` of a tile; empty outside the image.
    spx::Interval<T> interval(int tile, int pixel) const {
        const spx::TilePixel place = spx::tile_pixel(grid, tile, pixel);
        if (!place.inside) return {T(spx::FARTHEST), T(-spx::FARTHEST)};
        return spx::pixel_interval(view, faces, place);
    }

    spx::TileDepths<T> depths(int tile) const {
        if (covered && !covered[tile]) return spx::all_depths<T>();
        spx::TileDepths<T> d = spx::no_depths<T>();
        for (int pixel = 0; pixel < PIXELS; ++pixel)
            if (spx::tile_pixel(grid, tile, pixel).inside) spx::add_pixel(d, interval(tile, pixel));
        return d;
    }
};

// ---- lists ----

struct Touch {
    int32_t tile, item;
};

template <class T>
struct Lists {
    Cell<T> cell;
    std::vector<spx::TileDepths<T>> depths;  // of every tile; empty: all of space
    std::vector<int32_t> tiles, items, interval_rows;
    std::vector<int64_t> offsets;
    int64_t intervals = 0;
};

// Appends the tiles that a splat is drawn in.
template <class T>
void touch_tiles(const Lists<T>& lists, const T* splat, int32_t item, const uint8_t* mask,
                 std::vector<Touch>& out) {
    const spx::TileGrid& grid = lists.cell.grid;
    const spx::TileDepths<T>* depths = lists.depths.empty() ? nullptr : lists.depths.data();
    const spx::Footprint<T> footprint = spx::make_footprint(splat, grid);
    for (int row = footprint.top; row <= footprint.bottom; ++row) {
        int first, last;
        if (!spx::footprint_row(footprint, grid, row, first, last)) continue;
        for (int column = first; column <= last; ++column) {
            const int32_t tile = row * grid.across + column;
            if (spx::tile_lists_depth(mask, depths, tile, splat[9])) out.push_back({tile, item});
        }
    }
}

// Tiles that any splat of a few meets: 1, else 0. Depths of the others need not be known, and most
// cells of many draw little of a view. Empty: all tiles, where the splats are too many to ask.
template <class T>
std::vector<uint8_t> met_tiles(const spx::TileGrid& grid, const T* data, int64_t n) {
    std::vector<uint8_t> met;
    if (n > int64_t(grid.across) * grid.down) return met;
    met.resize(int64_t(grid.across) * grid.down);
    for (int64_t i = 0; i < n; ++i) {
        const spx::Footprint<T> footprint = spx::make_footprint(data + i * SPLAT_COLUMNS, grid);
        for (int row = footprint.top; row <= footprint.bottom; ++row) {
            int first, last;
            if (spx::footprint_row(footprint, grid, row, first, last))
                std::fill_n(met.begin() + row * grid.across + first, last - first + 1, 1);
        }
    }
    return met;
}

// Distributes the touches, which are front to back, over the tiles.
template <class T>
void distribute(Lists<T>& lists, const std::vector<std::vector<Touch>>& touches) {
    const int64_t tiles = lists.cell.tiles(), parts = int64_t(touches.size());
    std::vector<int64_t> next(tiles * parts);
#pragma omp parallel for schedule(static, 1) num_threads(int(parts))
    for (int64_t part = 0; part < parts; ++part)
        for (const Touch& touch : touches[part]) ++next[part * tiles + touch.tile];
    int64_t sum = 0;
    lists.offsets.push_back(0);
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t before = sum;
        for (int64_t part = 0; part < parts; ++part) {
            const int64_t count = next[part * tiles + tile];
            next[part * tiles + tile] = sum;
            sum += count;
        }
        if (sum == before) continue;
        lists.tiles.push_back(int32_t(tile));
        lists.offsets.push_back(sum);
    }
    lists.items.resize(sum);
#pragma omp parallel for schedule(static, 1) num_threads(int(parts))
    for (int64_t part = 0; part < parts; ++part)
        for (const Touch& touch : touches[part])
            lists.items[next[part * tiles + touch.tile]++] = touch.item;
}

// Numbers the tiles in which some listed depth is outside the interval of some pixel.
template <class T>
void number_intervals(Lists<T>& lists, const T* data) {
    lists.interval_rows.assign(lists.tiles.size(), -1);
    if (lists.depths.empty()) return;
    for (size_t k = 0; k < lists.tiles.size(); ++k) {
        const spx::TileDepths<T>& d = lists.depths[lists.tiles[k]];
        const T nearest = data[int64_t(lists.items[lists.offsets[k]]) * SPLAT_COLUMNS + 9];
        const T deepest = data[int64_t(lists.items[lists.offsets[k + 1] - 1]) * SPLAT_COLUMNS + 9];
        if (!spx::every_pixel_holds(d, nearest) || !spx::every_pixel_holds(d, deepest))
            lists.interval_rows[k] = int32_t(lists.intervals++);
    }
}

template <class T>
void build(Lists<T>& lists, const T* data, const int64_t* ids, int64_t n, const double* box,
           const uint8_t* mask, int threads) {
    if (box) {
        lists.depths.resize(lists.cell.tiles());
        const std::vector<uint8_t> met = met_tiles(lists.cell.grid, data, n);
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t tile = 0; tile < lists.cell.tiles(); ++tile)
            if ((!mask || mask[tile]) && (met.empty() || met[tile]))
                lists.depths[tile] = lists.cell.depths(int(tile));
    }
    const std::vector<int32_t> order = depth_order(data, ids, n);
    std::vector<std::vector<Touch>> touches(threads);
    bool full = false;
#pragma omp parallel for schedule(static, 1) num_threads(threads) reduction(|| : full)
    for (int part = 0; part < threads; ++part) {
        try {
            const int64_t start = n * part / threads, end = n * (part + 1) / threads;
            touches[part].reserve(2 * (end - start));  // small splats touch 1 to 2 tiles
            for (int64_t i = start; i < end; ++i) {
                constexpr int64_t AHEAD = 12;  // splats, hides the latency of a random row
                if (i + AHEAD < end)
                    __builtin_prefetch(data + int64_t(order[i + AHEAD]) * SPLAT_COLUMNS);
                const int32_t item = order[i];
                touch_tiles(lists, data + int64_t(item) * SPLAT_COLUMNS, item, mask,
                            touches[part]);
            }
        } catch (const std::bad_alloc&) {
            full = true;
        }
    }
    if (full) throw std::bad_alloc();
    distribute(lists, touches);
    number_intervals(lists, data);
}

template <class T>
int64_t make_lists(const T* data, const int64_t* ids, int64_t n, const double* camera,
                   int64_t width, int64_t height, const double* box, const uint8_t* mask,
                   const uint8_t* covered, int64_t threads, int64_t* counts) {
    try {
        auto* lists = new Lists<T>;
        Cell<T>& cell = lists->cell;
        cell.grid = spx::make_tile_grid(int(width), int(height));
        cell.view = spx::make_ray_view<T>(camera);
        cell.covered = covered;
        if (box) cell.faces = spx::make_cell_faces<T>(box, cell.view.center);
        try {
            build(*lists, data, ids, n, box, mask, int(threads));
        } catch (...) {
            delete lists;
            throw;
        }
        counts[0] = int64_t(lists->tiles.size());
        counts[1] = int64_t(lists->items.size());
        counts[2] = lists->intervals;
        return reinterpret_cast<int64_t>(lists);
    } catch (const std::bad_alloc&) {
        return 0;
    }
}

template <class T>
void take_lists(Lists<T>* lists, int32_t* tiles, int64_t* offsets, int32_t* items,
                int32_t* interval_rows, T* intervals, int threads) {
    std::copy(lists->tiles.begin(), lists->tiles.end(), tiles);
    std::copy(lists->offsets.begin(), lists->offsets.end(), offsets);
    std::copy(lists->items.begin(), lists->items.end(), items);
    std::copy(lists->interval_rows.begin(), lists->interval_rows.end(), interval_rows);
#pragma omp parallel for schedule(dynamic, 16) num_threads(threads)
    for (size_t k = 0; k < lists->tiles.size(); ++k) {
        const int32_t row = lists->interval_rows[k];
        if (row < 0) continue;
        T* out = intervals + int64_t(row) * 2 * PIXELS;
        for (int position = 0; position < PIXELS; ++position) {
            const auto z = lists->cell.interval(lists->tiles[k], pixel_of(position));
            out[position] = z.in, out[PIXELS + position] = z.out;
        }
    }
    delete lists;
}

}  // namespace

// tile_lists_T builds the lists and returns them as a handle (0: out of memory), with the counts
// of held tiles, items and interval rows; take_tile_lists_T copies them out and frees them.
// box: (6,) bounds of the cell or null; mask, covered: (tiles,) or null; intervals: (rows, 2, 256).
#define TILE_FUNCTIONS(T, NAME)                                                                 \
    extern "C" int64_t tile_lists_##NAME(const T* data, const int64_t* ids, int64_t n,          \
                                         const double* camera, int64_t width, int64_t height,   \
                                         const double* box, const uint8_t* mask,                \
                                         const uint8_t* covered, int64_t threads,               \
                                         int64_t* counts) {                                     \
        return make_lists(data, ids, n, camera, width, height, box, mask, covered, threads,     \
                          counts);                                                              \
    }                                                                                           \
    extern "C" int64_t take_tile_lists_##NAME(int64_t lists, int64_t threads, int32_t* tiles,   \
                                              int64_t* offsets, int32_t* items,                 \
                                              int32_t* interval_rows, T* intervals) {           \
        take_lists(reinterpret_cast<Lists<T>*>(lists), tiles, offsets, items, interval_rows,    \
                   intervals, int(threads));                                                    \
        return 0;                                                                               \
    }

TILE_FUNCTIONS(float, f32)
TILE_FUNCTIONS(double, f64)
