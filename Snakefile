# The whole chain, stage by stage; see README.md for the picture.
# snakemake                               the default study (config.yaml)
# snakemake --configfile my-study.yaml    another one, and nothing of the default
from snakemake.utils import min_version

min_version("9.10")


report: "workflow/report/workflow.rst"


if not config:

    configfile: "config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/one_shot.smk"
include: "workflow/rules/federate.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        plan.targets(),
