# Training: one method on one federation with one seed; of a swept method every trial, then the choice among them.


rule federate:
    # INPUT   samples and partition; for one-shot methods also the clusters and the warm-up's model and tables
    # OUTPUT  results by client and round, by class, costs, clusters, final models
    input:
        ask.inputs("federate"),
    output:
        history="results/{study}/{federation}/seed{seed}/methods/{method}/history.parquet",
        classes="results/{study}/{federation}/seed{seed}/methods/{method}/classes.parquet",
        rounds="results/{study}/{federation}/seed{seed}/methods/{method}/rounds.parquet",
        clusters="results/{study}/{federation}/seed{seed}/methods/{method}/clusters.parquet",
        models="results/{study}/{federation}/seed{seed}/methods/{method}/models.safetensors",
    log:
        "results/{study}/logs/{federation}/seed{seed}/federate/{method}.log",
    wildcard_constraints:
        method=ask.methods(swept=False),
    group:
        requests.group("federate")
    conda:
        "../envs/clusterfl.yaml"
    threads: 1
    resources:
        mem_mb=requests.memory("federate", 1500),
        runtime=requests.minutes("federate", 480),
    params:
        settings=ask.settings("federate"),
        code=ask.code("federate"),
        digest=ask.digest("federate"),
        trial="",
    shell:
        """
        clusterfl federate \\
        --config results/{wildcards.study:q}/settings.json \\
        --federation {wildcards.federation:q} \\
        --seed {wildcards.seed} \\
        --method {wildcards.method:q} {params.trial} \\
        --digest {params.digest} --needed \\
        --threads {threads} \\
        2>&1 | tee {log:q}
        """


use rule federate as trial with:
    # INPUT   as federate
    # OUTPUT  the same of one combination of the values that a method sweeps
    output:
        history="results/{study}/{federation}/seed{seed}/methods/{method}/trials/{trial}/history.parquet",
        classes="results/{study}/{federation}/seed{seed}/methods/{method}/trials/{trial}/classes.parquet",
        rounds="results/{study}/{federation}/seed{seed}/methods/{method}/trials/{trial}/rounds.parquet",
        clusters="results/{study}/{federation}/seed{seed}/methods/{method}/trials/{trial}/clusters.parquet",
        models="results/{study}/{federation}/seed{seed}/methods/{method}/trials/{trial}/models.safetensors",
    log:
        "results/{study}/logs/{federation}/seed{seed}/trial/{method}.{trial}.log",
    wildcard_constraints:
        method=ask.methods(swept=True),
        trial="[0-9]+",
    params:
        trial="--trial {trial}",


rule select:
    # INPUT   histories and costs of all trials with all seeds, and this seed's files of the trials
    # OUTPUT  every trial's validation score; the files of the best one, as federate writes them
    input:
        ask.inputs("select"),
    output:
        history="results/{study}/{federation}/seed{seed}/methods/{method}/history.parquet",
        classes="results/{study}/{federation}/seed{seed}/methods/{method}/classes.parquet",
        rounds="results/{study}/{federation}/seed{seed}/methods/{method}/rounds.parquet",
        clusters="results/{study}/{federation}/seed{seed}/methods/{method}/clusters.parquet",
        models="results/{study}/{federation}/seed{seed}/methods/{method}/models.safetensors",
        sweep="results/{study}/{federation}/seed{seed}/methods/{method}/sweep.parquet",
    log:
        "results/{study}/logs/{federation}/seed{seed}/select/{method}.log",
    wildcard_constraints:
        method=ask.methods(swept=True),
    group:
        requests.group("select")
    conda:
        "../envs/clusterfl.yaml"
    threads: 1
    resources:
        mem_mb=requests.memory("select", 1000),
        runtime=requests.minutes("select", 30),
    params:
        settings=ask.settings("select"),
        code=ask.code("select"),
        digest=ask.digest("select"),
    shell:
        """
        clusterfl select \\
        --config results/{wildcards.study:q}/settings.json \\
        --federation {wildcards.federation:q} \\
        --seed {wildcards.seed} \\
        --method {wildcards.method:q} \\
        --digest {params.digest} --needed \\
        2>&1 | tee {log:q}
        """
