/* What Score-P 8.4 wrote the archive beside this of, with Open MPI 4.1: two ranks train two epochs of two steps, in sleeps, with the
 * all-reduces that libraries make.
 *
 *     scorep --user --thread=pthread --nocompiler mpicc -O1 -o ranks ranks.c
 *     SCOREP_ENABLE_TRACING=true SCOREP_ENABLE_PROFILING=false mpirun -n 2 ./ranks
 */
#include <mpi.h>
#include <pthread.h>
#include <unistd.h>

#include <scorep/SCOREP_User.h>

static MPI_Comm others;

/* As Horovod does: a thread of its own all-reduces what has been handed to it. */
static void *all_reduce(void *gradient) {
    usleep(2000);
    MPI_Allreduce(MPI_IN_PLACE, gradient, 1, MPI_DOUBLE, MPI_SUM, others);
    return NULL;
}

int main(int argc, char **argv) {
    int has, rank;
    double gradients[4] = {1, 2, 3, 4}, heard = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &has);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_dup(MPI_COMM_WORLD, &others);
    MPI_Bcast(gradients, 4, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    SCOREP_USER_REGION_DEFINE(epoch)
    SCOREP_USER_REGION_DEFINE(step)
    SCOREP_USER_REGION_DEFINE(forward)
    SCOREP_USER_REGION_DEFINE(backward)
    SCOREP_USER_REGION_DEFINE(optimizer)
    for (int e = 0; e < 2; e++) {
        SCOREP_USER_REGION_BEGIN(epoch, "epoch", SCOREP_USER_REGION_TYPE_COMMON)
        for (int s = 0; s < 2; s++) {
            pthread_t thread;
            MPI_Request request;
            SCOREP_USER_REGION_BEGIN(step, "step", SCOREP_USER_REGION_TYPE_COMMON)
            SCOREP_USER_REGION_BEGIN(forward, "forward", SCOREP_USER_REGION_TYPE_COMMON)
            usleep(4000);
            SCOREP_USER_REGION_END(forward)
            SCOREP_USER_REGION_BEGIN(backward, "backward", SCOREP_USER_REGION_TYPE_COMMON)
            MPI_Iallreduce(MPI_IN_PLACE, &gradients[0], 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
            pthread_create(&thread, NULL, all_reduce, &gradients[1]);
            usleep(rank == 1 ? 12000 : 6000); /* rank 1 is the slow one */
            MPI_Allreduce(MPI_IN_PLACE, &gradients[2], 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); /* inside of backward */
            SCOREP_USER_REGION_END(backward)
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            pthread_join(thread, NULL);
            MPI_Irecv(&heard, 1, MPI_DOUBLE, 1 - rank, 7, MPI_COMM_WORLD, &request);
            MPI_Send(&gradients[3], 1, MPI_DOUBLE, 1 - rank, 7, MPI_COMM_WORLD);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            SCOREP_USER_REGION_BEGIN(optimizer, "optimizer", SCOREP_USER_REGION_TYPE_COMMON)
            usleep(1000);
            SCOREP_USER_REGION_END(optimizer)
            SCOREP_USER_REGION_END(step)
        }
        MPI_Barrier(MPI_COMM_WORLD);
        SCOREP_USER_REGION_END(epoch)
    }
    MPI_Finalize();
    return 0;
}
