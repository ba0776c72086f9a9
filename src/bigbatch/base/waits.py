"""All nested waits in one table, in seconds. This file imports nothing.

A process that takes longer than its parent waits is killed, and its work is lost. So each inner wait, with all that
follows it, must be shorter than the outer one. A test checks the order.

The end of an allocation, from the outside in. Slurm kills a job at its time limit.

    MARGIN_S 120           the job stops this long before its time limit: its driver saves, its nodes end
      SAVE_S 60            the job waits for its driver: save the trials, write the tables (a longer margin gives more)
        LEAST_WAIT_S 10    the driver waits for its trials: a checkpoint after the current step (at most MOST_WAIT_S)
        AFTER_TRIALS_S 15  the driver's own work after its trials
      MARGIN_REST_S 30     after the driver: end the nodes, requeue (at least LIMIT_REST_S 20 before the limit)
        NODES_END_S 10     the job waits for its nodes
          HOLD_S 1.5       a node waits for the job's word that trials still save
          RAY_END_S 3      a node waits for its Ray
          FOLDER_GONE_S 2  a node removes its temporary folder while processes still die

A job that is cancelled. Slurm kills it KILL_WAIT_S after its SIGTERM, by default.

    KILL_WAIT_S 30
      KILLED_REST_S 4        the part of it after the driver, if the driver may save: the nodes end
      CRASH_OR_SIGNAL_S 2    the job waits for a signal of Slurm that explains a lost node
      FIRST_ANSWER_S 3       the job waits for Slurm to say why it signals
      CANCELLED_SAVE_S 3     the job waits for its driver
      CANCELLED_NODES_S 3    the job waits for its nodes

A run without a job. Nobody kills it, so only a person's patience limits these times.

    RUN_SAVE_S 30            ``train_loop/run.py`` under Ray, for its workers' checkpoint after Ctrl-C
    TRIAL_END_S 15           a trial that was stopped early, for its workers to end
    RESET_S 120              Tune, for the process of such a trial to begin the next one
      LEAVE_S 10             a worker, to leave the trial (it checks after a step, once a second); else it is killed
      GROUP_END_S 30         Ray, for the workers to leave their process group
      ANSWER_S 30            a worker, to answer between two trials; else it is killed
    SAME_SIGNAL_S 3          a rank: within it a second signal is the same Ctrl-C, handed on by torchrun

Nodes that hold no trial.

    JOINED_GRACE_S 600       a search on a cluster that was joined: nodes may be added to it
      WAIT_IN_JOB_S 60       a search in a job, which pays for the nodes that are left

Signs of life.

    STALE_S 60               a lease without a sign of life may be taken by anyone
      RENEW_S 10             its holder says that it lives
      CLAIM_S 10             one who has claimed a dead one's lease has written its own by then
    HUNG_S 60                a node without a heartbeat is given up
      HEARTBEAT_S 5          a node's heartbeat
      FIRST_LOST_S 180       then another node requeues the job of a first node: it would run on, empty
      HUNG_DRAIN_S 5         the job tells Ray of it; meanwhile it notices nothing else

The start of a job's nodes.

    START_TIMEOUT_S 300      default of ``--start-timeout``: Ray's start is tried again, then the job goes on or ends
      RAY_START_S 30         Ray waits for its own processes, and no setting changes that

A controller of Slurm that does not answer.

    SILENT_S 300             a job, for any answer
      COMMAND_S 30           one command
"""

from __future__ import annotations

MARGIN_S = 120
"""Default of ``--signal`` and ``--margin``: a job begins to save this long before its time limit."""
SAVE_S = 60.0
"""The driver's time to save, near the time limit or in a preemption's grace time."""
LEAST_WAIT_S, MOST_WAIT_S = 10.0, 600.0
"""Running trials get this time to stop by themselves: twice the study's longest step, within these bounds."""
AFTER_TRIALS_S = 15.0
"""Time for the driver itself after its trials have ended: it writes the tables and ends Ray."""
MARGIN_REST_S = 30.0
"""The part of the margin after the driver: its Ray, the nodes, the requeue."""
LIMIT_REST_S = 20.0
"""The same for a late driver: it is ended this long before the time limit in any case."""
GIVE_UP_REST_S = 5.0
"""A job stops asking a silent controller this long before the time limit."""
NODES_END_S = 10.0
"""Time for a job's nodes to end."""
HOLD_S = 1.5
"""From SIGTERM until a node ends itself, unless the job asks it to hold on."""
RAY_END_S = 3.0
"""Time for a node's Ray to end after SIGTERM."""
FOLDER_GONE_S = 2.0
"""Time to remove a private folder: dying processes may still write into it."""

KILL_WAIT_S = 30
"""Slurm's default time from its SIGTERM to its SIGKILL. A job asks for its site's value."""
KILLED_REST_S = 4.0
"""The part of the site's KillWait after the driver, if Slurm's SIGKILL is near."""
CRASH_OR_SIGNAL_S = 2.0
"""Steps get SIGTERM before the batch script does. For this time a lost step is not called a crash."""
FIRST_ANSWER_S = 3.0
"""Time for Slurm to say why it signals. Then trials are told to save, and the question continues in the background."""
CANCELLED_SAVE_S = 3.0
"""Time for the driver of a cancelled job."""
CANCELLED_NODES_S = 3.0
"""Time for a cancelled job's nodes: Slurm kills the rest anyway, and the job must still write its record."""

RUN_SAVE_S = 30.0
"""How long the workers of a full run may take to write their checkpoint after Ctrl-C."""
TRIAL_END_S = 15.0
"""How long a trial that was stopped early may take to end its workers."""
RESET_S = 120.0
"""How long the process of a trial that was stopped early may take to begin the next one."""
LEAVE_S = 10.0
"""How long a worker may take to leave a trial that was stopped early. It checks after a step, once a second."""
GROUP_END_S = 30.0
"""Ray's own limit: workers that have not left their process group by then are ended without."""
ANSWER_S = 30.0
"""How long a worker may take to answer between two trials."""
SAME_SIGNAL_S = 3.0
"""torchrun passes on a Ctrl-C that its workers have already received from the terminal."""

JOINED_GRACE_S = 600.0
"""A search on a joined cluster gives up if no trial fits for this time: a lost node may return."""
WAIT_IN_JOB_S = 60.0
"""The same in a Slurm job. It pays for the remaining nodes, so after this time it goes back into the queue."""

STALE_S = 60.0
"""A lease may be taken over if its holder cannot be asked and gives no sign of life for this long."""
RENEW_S = 10.0
"""Interval between two signs of life of a lease's holder."""
CLAIM_S = 10.0
"""A process that claims a dead holder's lease writes its own within this time, or has died."""
HUNG_S = 60.0
"""A node without a heartbeat for this long counts as hung."""
HEARTBEAT_S = 5.0
"""Interval between two heartbeats of a node."""
FIRST_LOST_S = 180.0
"""A job's first node that gives no sign of life for this long is lost. Its Ray is missed after 60 s."""
HUNG_DRAIN_S = 5.0
"""Timeout for telling Ray to place nothing on a hung node. Meanwhile the job notices nothing else."""

START_TIMEOUT_S = 300.0
"""Default of ``--start-timeout``: the time for all nodes to register."""
RAY_START_S = 30.0
"""Ray's own limit: if its processes are not up by then, ``ray start`` fails."""

SILENT_S = 300.0
"""How long a job waits for a silent controller. A cancelled job is killed earlier."""
COMMAND_S = 30.0
"""Timeout of one Slurm command."""
