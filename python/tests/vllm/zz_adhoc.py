import os, sys, time, json, random
import engines
from engines import Engine, story, BLOCK
from tessera import vllm_plugin
vllm_plugin.register()
from vllm import SamplingParams, TokensPrompt
N=int(os.environ.get("DOCS","4")); LEN=int(os.environ.get("LEN","150"))
def docs(tok):
    out=[]
    for i in range(N):
        t=tok.encode(story(i*13+1,60))[:LEN]
        while len(t)<LEN: t+=tok.encode(story(i*17+5,60))
        out.append(t[:LEN])
    return out
def prompt(tok, ds, order, q=0):
    s=tok.encode("You answer questions about stories.\n"); toks=list(s); seg=[[0,len(s)]]
    for i in order:
        seg.append([len(toks),len(ds[i])]); toks+=ds[i]
    toks+=tok.encode(f"\nQuestion {q}: who was at the harbour and what did they do? Answer: The")
    return toks,seg
def ask(e, toks, seg=None, ratio=None, n=8, selector=None):
    extra={}
    if seg is not None:
        p={"segments":seg,"system":True}
        if ratio is not None: p["ratio"]=ratio
        if selector: p["selector"]=selector
        extra={"extra_args":{"kv_transfer_params":{"tessera":p}}}
    sp=SamplingParams(temperature=0,max_tokens=n,logprobs=0,ignore_eos=True,**extra)
    t=time.perf_counter()
    (o,)=e.llm.generate([TokensPrompt(prompt_token_ids=toks)],sp,use_tqdm=False)
    dt=time.perf_counter()-t
    one=o.outputs[0]
    return dict(tokens=list(one.token_ids),lp=[s[k].logprob for k,s in zip(one.token_ids,one.logprobs)],cached=o.num_cached_tokens,s=dt)
mode=sys.argv[1]; MORE=json.loads(os.environ.get("MORE","{}"))
more=dict(max_model_len=8192,**MORE)
if mode=="equal":
    out={}
    with Engine(None,**more) as e:
        ds=docs(e.tokenizer)
        ps=[prompt(e.tokenizer,ds,o,k) for k,o in enumerate([(0,1,2,3),(3,1,0,2),(2,0,3,1)])]
        plain=[ask(e,t) for t,_ in ps]
    with Engine({"host_size":"1G","blend":{"min_tokens":0}},**more) as e:
        for r in (1.0,0.0,0.05,0.3):
            for (t,s),w in zip(ps,plain):
                got=ask(e,t,s,r)
                print(r,len(t),"cached",got["cached"],"same",got["tokens"]==w["tokens"],"lp",max(abs(a-b) for a,b in zip(got["lp"],w["lp"])), f'{got["s"]:.3f} s plain {w["s"]:.3f}')
        got=ask(e,ps[0][0]); print("plain in blend engine",got["cached"],got["tokens"]==plain[0]["tokens"])
        print({k:v for k,v in e.connector._counters().items() if v})
if mode=="speed":
    N=10; LEN=600
    random.seed(3)
    orders=[random.sample(range(10),10) for _ in range(4)]
    if "plain" in sys.argv:
        with Engine(None,enable_prefix_caching=True,**more) as e:
            ds=docs(e.tokenizer)
            for k,o in enumerate(orders[:2]):
                t,s=prompt(e.tokenizer,ds,o,k); w=ask(e,t,n=1); print("plain",len(t),w["cached"],f'{w["s"]:.3f}',flush=True)
    import tessera.vllm_blend as vb, tessera.blend as tb
    W={}
    def timed(obj,name,key=None):
        f=getattr(obj,name)
        def g(*a,**k):
            t=time.perf_counter()
            try: return f(*a,**k)
            finally: W[key or name]=W.get(key or name,0)+time.perf_counter()-t
        setattr(obj,name,g)
    timed(vb.BlendWorker,"_blend"); timed(vb.BlendWorker,"_hand_over"); timed(vb.BlendWorker,"run")
    import tessera.vllm_model as vm
    for n in ("begin","layer","_project","_attend","_finish","_plain","_weighed"): timed(vm.BlendExecutor,n)
    timed(vm.Staging,"fit")
    with Engine({"host_size":"2G","blend":{"min_tokens":0}},**more) as e:
        ds=docs(e.tokenizer)
        t,s=prompt(e.tokenizer,ds,range(10),0); w=ask(e,t,s,0.0,n=1); print("fill",len(t),w["cached"],f'{w["s"]:.3f}',{k:round(v,3) for k,v in W.items()},flush=True)
        for r in (0.0,0.05,0.0,0.05,0.15):
            for k,o in enumerate(orders[:3]):
                W.clear()
                t,s=prompt(e.tokenizer,ds,o,k); w=ask(e,t,s,r,n=1); print(r,len(t),w["cached"],f'{w["s"]:.3f}',{k:round(v,3) for k,v in W.items()},flush=True)
