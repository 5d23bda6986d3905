/* Agents on square fields walk and pick berries. All fields are reset or stepped in one call, by several threads. */
#include <stdint.h>

typedef struct {
    int num_envs, num_agents, num_berries, size, length;
} Rules;

/* splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators") */
static uint64_t draw(uint64_t *stream)
{
    uint64_t z = *stream += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void place(uint64_t *stream, int size, int32_t *cell)
{
    cell[0] = (int32_t)(draw(stream) % (uint64_t)size);
    cell[1] = (int32_t)(draw(stream) % (uint64_t)size);
}

/* An agent sees its cell and the way to each berry, as shares of the field. */
static void observe(const Rules *rules, const int32_t *agents, const int32_t *berries, float *obs)
{
    float size = (float)rules->size;
    for (int a = 0; a < rules->num_agents; a++) {
        const int32_t *agent = agents + 2 * a;
        for (int k = 0; k < 2; k++) *obs++ = (float)agent[k] / size;
        for (int b = 0; b < rules->num_berries; b++)
            for (int k = 0; k < 2; k++) *obs++ = (float)(berries[2 * b + k] - agent[k]) / size;
    }
}

void reset(const Rules *rules, int64_t n, const int64_t *envs, const uint64_t *seeds, uint64_t *streams, int32_t *times,
           int32_t *agents, int32_t *berries, float *obs)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t e = envs[i];
        int32_t *own_agents = agents + 2 * rules->num_agents * e, *own_berries = berries + 2 * rules->num_berries * e;
        streams[e] = seeds[i];
        times[e] = 0;
        for (int a = 0; a < rules->num_agents; a++) place(streams + e, rules->size, own_agents + 2 * a);
        for (int b = 0; b < rules->num_berries; b++) place(streams + e, rules->size, own_berries + 2 * b);
        observe(rules, own_agents, own_berries, obs + rules->num_agents * (2 + 2 * rules->num_berries) * e);
    }
}

void step(const Rules *rules, int num_threads, const int64_t *actions, float *obs, double *rewards,
          uint8_t *truncated, uint64_t *streams, int32_t *times, int32_t *agents, int32_t *berries)
{
    static const int moves[5][2] = {{0, 0}, {1, 0}, {-1, 0}, {0, 1}, {0, -1}};
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1)
    for (int e = 0; e < rules->num_envs; e++) {
        int32_t *own_agents = agents + 2 * rules->num_agents * e, *own_berries = berries + 2 * rules->num_berries * e;
        for (int a = 0; a < rules->num_agents; a++) {
            int32_t *agent = own_agents + 2 * a;
            for (int k = 0; k < 2; k++) {
                int32_t to = agent[k] + moves[(uint64_t)actions[rules->num_agents * e + a] % 5][k];
                if (to >= 0 && to < rules->size) agent[k] = to;
            }
            for (int b = 0; b < rules->num_berries; b++) {
                int32_t *berry = own_berries + 2 * b;
                if (berry[0] != agent[0] || berry[1] != agent[1]) continue;
                rewards[rules->num_agents * e + a] += 1.0;
                place(streams + e, rules->size, berry);
            }
        }
        truncated[e] = ++times[e] >= rules->length;
        observe(rules, own_agents, own_berries, obs + rules->num_agents * (2 + 2 * rules->num_berries) * e);
    }
}
