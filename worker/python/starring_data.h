// Batches of a data set for a training loop that is not ours: the part of libstarring.so's C interface that reads files
// and makes batches. starring.h has the codes: every function returns ST_OK, ST_INVALID or ST_INTERNAL, and one may
// return ST_TIMEOUT. st_data_last_error has the sentence.
//
//   st_dataset* dataset;
//   st_dataset_options files = {.struct_bytes = sizeof files, .name = "mnist", .data_dir = "/data"};
//   if (st_dataset_open(&files, &dataset) != ST_OK) fail(st_data_last_error());
//   st_loader* loader;
//   st_loader_options options = {.struct_bytes = sizeof options, .dataset = dataset, .global_batch = 64,
//                                .world_size = 1, .shuffle = 1, .threads = 1, .prefetch_depth = 3, .end_step = 938,
//                                .deadline_s = 60};
//   if (st_loader_open(&options, &loader) != ST_OK) fail(st_data_last_error());
//   st_batch batch;
//   while (st_loader_next(loader, &batch) == ST_OK && batch.memory) {
//     ... batch.images, and batch.labels or batch.targets ...
//     st_loader_give_back(loader, batch.memory);
//   }
//   st_loader_close(loader);
//   st_dataset_close(dataset);
//
// Which samples a rank gets in which step, their order and their crops are functions of the options alone: those of
// Starring's worker with the same flags (worker/data/sampler.h, worker/data/crop_flip.h). Ranks share a global batch
// without overlap, padding or repetition.
//
// Threads: any thread may use a data set. One thread at a time calls st_loader_next of a loader, and no thread during
// or after st_loader_close. Any thread may give back a batch, at any time.
//
// fork: a loader belongs to the process that opened it. In a child of fork st_loader_next returns ST_INVALID, and the
// other functions of a loader have no effect. A data set may be used there.
#ifndef STARRING_WORKER_PYTHON_STARRING_DATA_H_
#define STARRING_WORKER_PYTHON_STARRING_DATA_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_TRAIN = 0, ST_TEST = 1 };
enum { ST_CIFAR100_FINE = 0, ST_CIFAR100_COARSE = 1 };  // as the worker's --cifar100_labels
// A model has to say one of some classes, or numbers, or bits. ST_TARGET_AS_FOUND: what the files have, and classes for
// a table.
enum { ST_TARGET_AS_FOUND = 0, ST_TARGET_CLASS = 1, ST_TARGET_NUMBERS = 2, ST_TARGET_BITS = 3 };
enum { ST_AUGMENT_NONE = 0, ST_AUGMENT_CROP_FLIP = 1 };  // as the worker's --augment

typedef struct st_dataset st_dataset;
typedef struct st_loader st_loader;

typedef struct st_dataset_options {
  uint32_t struct_bytes;  // sizeof(st_dataset_options)
  const char* name;       // a name that the worker's --dataset takes, as "mnist"
  const char* data_dir;   // the folder of the files, as the worker's --data_dir; may be null
  uint64_t seed;          // of "synthetic", and its sizes; 0: the worker's defaults
  int64_t synthetic_train_count;
  int64_t synthetic_test_count;
  int64_t synthetic_height;
  int64_t synthetic_width;
  int64_t synthetic_channels;
  int64_t synthetic_classes;
  int32_t cifar100_labels;  // ST_CIFAR100_...
  double test_fraction;     // as the worker's --test_fraction
  uint64_t split_seed;      // as the worker's --split_seed
  const char* csv_label;    // as the worker's --csv_label; may be null
  int32_t target;           // ST_TARGET_...: another than that of the files is refused, but two classes serve as a bit
} st_dataset_options;

// Reads both sets into memory: pixels as bytes, numbers as float32.
int st_dataset_open(const st_dataset_options* options, st_dataset** dataset);

typedef struct st_dataset_facts {
  int64_t count;  // of images in the set that was asked for
  int64_t height;
  int64_t width;
  int64_t channels;
  int64_t classes;        // 0 without ST_TARGET_CLASS
  int32_t target;         // ST_TARGET_CLASS, ST_TARGET_NUMBERS or ST_TARGET_BITS
  int64_t target_values;  // of a sample; 0 with ST_TARGET_CLASS
  // The statistics of the training set, by channel: of pixel / 255, or of numbers. Valid until the data set is closed.
  const float* mean;
  const float* deviation;
} st_dataset_facts;

int st_dataset_facts_of(const st_dataset* dataset, int32_t set, st_dataset_facts* facts);

// The memory is freed with the last loader of the data set. `dataset` may be null.
int st_dataset_close(st_dataset* dataset);

typedef struct st_loader_options {
  uint32_t struct_bytes;      // sizeof(st_loader_options)
  const st_dataset* dataset;  // may be closed while the loader lives
  int32_t set;                // ST_TRAIN or ST_TEST
  int32_t augment;            // ST_AUGMENT_...
  int64_t global_batch;       // samples of all ranks in a step; fewer in the last step of an epoch, if need be
  int32_t rank;
  int32_t world_size;
  uint64_t seed;           // of order and augmentation
  int32_t shuffle;         // 0: the order of the files
  int32_t threads;         // that fill batches
  int32_t prefetch_depth;  // batches filled or being filled ahead; 0: st_loader_next fills, without a thread
  int64_t first_step;      // steps count over all epochs: epoch = step / steps of an epoch
  int64_t end_step;        // one past the last
  double deadline_s;       // of one st_loader_next
  const float* mean;       // by channel, in the units of st_dataset_facts; null: those of the training set
  const float* deviation;
} st_loader_options;

int st_loader_open(const st_loader_options* options, st_loader** loader);

typedef struct st_batch {
  int64_t step;
  int64_t epoch;
  int64_t global_count;  // samples of all ranks in this step
  int64_t count;         // samples of this rank; may be 0
  float* images;         // (count, height, width, channels), normalised, 64-byte aligned
  int64_t* labels;       // ST_TARGET_CLASS: (count); otherwise null
  float* targets;        // ST_TARGET_NUMBERS, ST_TARGET_BITS: (count, target_values); otherwise null
  void* memory;          // for st_loader_give_back; null: there is no batch left
} st_batch;

// The batch of the next step. It stays as it is until it is given back, so any number of batches may be held, for the
// price of their memory. ST_TIMEOUT: it was not filled within deadline_s; the next call waits for it again.
int st_loader_next(st_loader* loader, st_batch* batch);

// Gives a batch's memory back for a later batch. Every batch must be given back once, also after st_loader_close.
int st_loader_give_back(st_loader* loader, void* memory);

// Ends the loader's threads. Batches that were not given back stay as they are, and the last of them that is given back
// frees the loader. `loader` may be null.
int st_loader_close(st_loader* loader);

// The sentence of this thread's last call of a function above that failed. Never null. Valid until this thread's next
// call that fails.
const char* st_data_last_error(void);

#ifdef __cplusplus
}
#endif

#endif  // STARRING_WORKER_PYTHON_STARRING_DATA_H_
