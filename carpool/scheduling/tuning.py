"""Every constant of the adaptive policy, with its reason. Units: seconds, unless it is a plain number.

The figures behind them come from the simulator (`make sim`); change one here, run it, and look at all cells.
"""

from __future__ import annotations

# Weight of a sample after one more has come: about the last 33 batches decide, so a predictor that becomes three times
# slower is known within a second, and one odd batch changes little.
FORGETTING = 0.97

# Weight of the newest sample in running means: the last ten or so decide.
EWMA = 0.2

# Weight of the newest model of the predictor in what people are told of it, which is asked after so many batches: about
# the last hundred batches decide. A line through the last few small ones points anywhere at the size of a full one.
USUAL_WEIGHT = 0.08
USUAL_EVERY = 8

# Weight of the newest squared residual: slower than the model itself, for a variance needs more samples than a mean.
SPREAD_WEIGHT = 0.05

# So many samples in a row that are off by this factor less one, on the same side, are not noise: the predictor has
# changed (a cold start is over, a neighbour has moved in), and most of what was learned is let go.
SURPRISE = 0.5
SURPRISES = 4
KEPT_AFTER_CHANGE = 0.02

# Below so many samples a model is not trusted.
ENOUGH = 5

# Predictions that must hold (deadlines) add so many standard deviations, but never more than half.
Z = 2.0
LARGEST_MARGIN = 0.5

# Weight of a batch that was slower than the quickest one in how quick that is remembered to be: for about 50 batches.
QUICKEST_WEIGHT = 0.02

# A predictor that has had nothing to do for so long gets the next request, even one that seems too late: a model that
# is wrong and turns everybody away would never learn better.
DROUGHT = 0.25

# What a batch costs the sidecar's own core beside its requests, in requests, while batches of one size leave that open:
# one more call to the predictor, its head, and the answer's.
BATCH_IN_REQUESTS = 6.0

# Share of the time that the sidecar's core is at work from which on batches are kept apart for its sake. Below, the
# predictor decides when they leave, and to wait longer would keep it waiting too.
BUSY_CORE = 0.95

# Weight of the newest batch in the running means that this is told by: the last forty or so decide, a few milliseconds.
PACE_WEIGHT = 0.05

# Share of a core's time that is taken to be left by requests, at least: none is left where they alone are too many.
LEAST_LEFT = 0.02

# Longest voluntary wait for callers that were just answered and are expected back. Longer holds never paid in any
# cell: whoever is not back by then is not coming back as a group.
HOLD_MAX = 0.020

# Part of the gain a hold must promise before it is made; below 1 because an expectation may fail.
HOLD_GAIN = 0.75

# An expected return is late by at most this factor of its usual offset.
HOLD_STRETCH = 1.25

# Share of the answered that come back from which on they are a closed loop. Independent callers stay below a half: of
# those who come during a batch, the part that comes in the span after it.
SURE_RETURN = 0.9

# Shortest span in which an arrival counts as the return of an answered caller.
RETURN_SPAN = 0.001

# Timers shorter than this cost more than they save.
SHORTEST_WAIT = 0.00001

# A batch that is out for so many times a round trip after its expected end, and for so long at least, is not counted on
# any more: others leave as if it were not there. Nothing is known of the first one, which nearly all predictors answer
# sooner than this. Where it is the predictor that is slow, more batches wait there than need to, up to the limit, and
# while nothing is known of it, so that it may well be slow, the next one is counted on for longer.
PATIENCE = 4.0
SHORTEST_PATIENCE = 0.1
FIRST_PATIENCE = 0.2
NEXT_PATIENCE = 2.5

# A round trip this much above its prediction, so many times in a row, is trouble.
SLOW_FACTOR = 1.5
SLOW_TIMES = 3

# Pause after the predictor refused or reset a connection; doubles up to the longest, ends with the first success.
BACKOFF_FIRST = 0.05
BACKOFF_LONGEST = 1.0

# Learning how many batches the predictor works on at once. A batch that leaves beside others is compared with what one
# worker more, and one worker less, would have made of it; the log-likelihood ratios of such comparisons are summed up
# (Wald's sequential test). The bounds make a wrong step about as likely as e to the minus that. Now and then a batch
# is sent early to have something to compare. No single batch counts for more than a bound,
# and none where both guesses are about the same. Until a model is trusted its times are taken to vary more.
PROBE_EVERY = 24
PROBE_SELDOM = 1000
PROBE_JITTER = 0.5
EVIDENCE_FOR_MORE = 6.0
EVIDENCE_FOR_FEWER = 6.0
EVIDENCE_OF_ONE = 2.0
LEAST_SPREAD = 0.1
FIRST_SPREAD = 0.4
LEAST_DIFFERENCE = 0.25
CLEAR_SPREADS = 1.5
MOST_WORKERS = 16
MOST_STATED = 1024

# How many batches are worth having out, beside those that are worked on, is how many of the last ones' working times
# fit into the rest of a round trip, rounded up where more than this is left over.
LEFT_OVER = 0.25

# What one batch takes alone is the yardstick for all of this. A predictor that is never idle is let run dry once in so
# many batches, to measure it anew; at first as soon as each worker has one. Others wait longer meanwhile, so each time
# doubles the distance to the next, until the predictor turns out to be another.
LONE_EVERY = 200
LONE_SELDOM = 3200

# How large a batch is best is tried after so many full ones, with so many in a row, until so many of them came back one
# right after another. What the settled size takes is known from about the last ten. A smaller size has to be quicker by
# this factor, or noise would find one; one that by the model takes so many times as long for each row is not tried. A
# trial that changes nothing doubles the distance to the next. A batch is of a size from this share of it on: requests
# of several rows leave room.
TRIAL_FIRST = 24
TRIAL_SELDOM = 1536
TRIAL = 10
TRIAL_SAMPLES = 6
TRIAL_KEPT = 0.9
TRIAL_GAIN = 1.04
TRIAL_HOPELESS = 1.1
FULL = 0.9

# Until so many comparisons left the number of workers as it was, full batches may go two further than it allows. A
# serial predictor works on them one after the other, as it would anyway; a parallel one shows itself.
JUDGED_ENOUGH = 16
EXPLORE = 2

# How far apart batches leave is tried after so many of them, the present distance and another one in turns of so many
# batches each: longer ones would see different loads, and of fewer chance would decide. Another distance has to be
# better by this factor at the end, and by Z standard errors, and a trial ends early where it is not ahead. One that is
# wider than batches are apart anyway, by this factor, only keeps the predictor waiting; that mean is of about the last
# 50, for a mean that wanders would let some pass. A trial that changes nothing doubles the distance to the next, unless
# batches become larger or smaller by this factor, in the mean of about the last 20, and by so many standard errors of
# the difference between two such means: thousands of looks at means that only wander see three now and then.
SPACING_FIRST = 8
SPACING_SELDOM = 8192
SPACING_TURN = 10
SPACING_TURNS = 8
SPACING_GAIN = 0.96
SPACING_WIDEST = 1.1
SPACING_APART_WEIGHT = 0.02
SPACING_CHANGE = 1.33
SPACING_SIZE_WEIGHT = 0.05
SPACING_CLEAR = 4.0

# The arrival rate that is shown (not decided by) is that of about the last ten seconds.
RATE_SECONDS = 10.0

# Rows of like length are looked for among so many batches of those that wait.
LOOK_AHEAD = 4

# All of it is done before a batch leaves, and nothing else meanwhile. So however large a batch may be, so many requests
# are looked at. Of the places where a batch may end all up to this distance are tried, and those beyond it in steps of
# that part of the distance.
MOST_LOOKED_AT = 1024
TRIED_NEARBY = 8

# Requests of a high level wait for what is at the predictor. While both come, batches of lower ones leave just in time,
# and are so small that they take this many times as long as one instance alone: a high one that finds such a batch
# before it, and shares the next, is then answered about as soon as if it had come just behind a lone one.
SHORT = 2.0
LEVEL_SECONDS = 10.0
